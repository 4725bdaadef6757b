"""Other programs' configurations as recipes. `write` puts the parts together:

read, shell      a configuration, from whatever file it is in
validate         what must hold before anything is translated
options          the table of every option of theirs
agents           their agents, with our names
shapes           their workflows
templates        their prompt templates as text of ours
roles            `roles:`, `tools:`, prompts and `workflow.py`
policies         `model:`, `mapping:` and `policies:`
flags            `flags:`
coach            the coach's flags and prompts
tasks, items     data, `tasks.py` and `grader.py`
tiny             `tiny.yaml`
report           what a person should know about the import
"""
