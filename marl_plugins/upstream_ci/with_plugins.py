"""A pytest plugin: every shipped plugin is active, and our subclasses replace upstream's classes, as in a run."""

from marl_plugins.loading import present
from marl_plugins.manager import Plugins
from marl_plugins.plugin_names import SHIPPED

PLUGINS = Plugins([name for name in present(SHIPPED) if name != "marl_plugins.adapters"])  # one back-end at a time

# Importing each of them puts its subclass where upstream looks it up.
import marl_plugins.processes.policy_actor  # noqa: E402  # isort: skip
import marl_plugins.processes.critic_actor  # noqa: E402
import marl_plugins.processes.engine_actor  # noqa: E402
import marl_plugins.runtime.policy  # noqa: E402, F401
