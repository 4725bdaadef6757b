"""Other frameworks' configurations as recipes: reading them (`read`, `checks`), what each option becomes (`options`), prompts
(`prompts`), workflows (`shapes`) and data (`items`). `marl_plugins/recipes_import.py` puts them together."""
