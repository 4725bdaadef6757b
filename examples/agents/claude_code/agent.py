"""Claude Code in a repository of its own, with the endpoint in the place of Anthropic's API. The
answer is the module that it leaves behind."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CLAUDE = [
    os.environ.get("CLAUDE", "claude"),
    "--print",
    "--bare",  # nothing of the user's settings, and no requests beside the conversation
    "--model=solver",  # the role
    "--tools=Read,Edit",  # without it the opening context has 18,700 tokens of tools (Qwen3's)
    "--permission-mode=acceptEdits",
    "--no-session-persistence",
]

with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as folder:
    for name, text in json.loads(os.environ["MARL_TASK"])["metadata"].items():
        Path(folder, name).write_text(text)
    subprocess.run(
        CLAUDE,
        input=sys.stdin.read(),
        text=True,
        cwd=folder,
        env=os.environ | {"HOME": home, "CLAUDE_CODE_MAX_RETRIES": "0"},
        stdout=sys.stderr,
        check=True,
    )
    print(Path(folder, "intervals.py").read_text())
