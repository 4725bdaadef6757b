"""A pytest plugin: every shipped plugin is active, and our subclasses stand in upstream's modules, as in a run."""

from marl_plugins.manager import SHIPPED, Plugins

PLUGINS = Plugins([*SHIPPED])

# Each of them puts its subclass where upstream looks it up, when it is imported.
import marl_plugins.runtime.policy_actor  # noqa: E402  # isort: skip
import marl_plugins.runtime.critic_actor  # noqa: E402
import marl_plugins.runtime.engine_actor  # noqa: E402
import marl_plugins.runtime.policy  # noqa: E402, F401
