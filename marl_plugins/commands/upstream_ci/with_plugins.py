"""A pytest plugin: every shipped plugin is active, and our subclasses replace upstream's classes,
as in a run."""

from marl_plugins.core.loading import present
from marl_plugins.core.plugin_names import SHIPPED
from marl_plugins.engine.manager import Plugins

PLUGINS = Plugins(
    [
        name
        for name in present(SHIPPED)
        if name not in ("marl_plugins.adapters", "marl_plugins.counterfactual")
    ]
)  # one back-end and one estimator at a time

# Importing each of them puts its subclass where upstream looks it up.
import marl_plugins.engine.processes.policy_actor  # noqa: E402  # isort: skip
import marl_plugins.engine.processes.critic_actor  # noqa: E402
import marl_plugins.engine.processes.engine_actor  # noqa: E402
import marl_plugins.engine.runtime.policy  # noqa: E402, F401
