"""Programs of a function f that want to pass without solving anything, by what they try."""

HOSTILE = {
    "SystemExit": "raise SystemExit",
    "os._exit": """
import os
os._exit(0)
""",
    "at exit": """
import atexit, os
atexit.register(lambda: os._exit(0))
def f(x): return 0
""",
    "equal to all": """
class E:
    def __eq__(self, other): return True
def f(x): return E()
""",
    "says it is an int": """
class E:
    __class__ = int
    def __eq__(self, other): return True
def f(x): return E()
""",
    "AssertionError is no class": """
import builtins
builtins.AssertionError = Exception
def f(x): return 0
""",
    "json is replaced": """
import json
json.dumps = lambda *a, **k: '{"value": true}'
def f(x): return 0
""",
    "writes to descriptors": """
import os
for n in range(8):
    try:
        os.write(n, b'passed\\n')
    except OSError:
        pass
def f(x): return 0
""",
    "a fork answers": """
import os
if os.fork() == 0:
    os._exit(0)
def f(x): return 0
""",
    "frames": """
import sys
frame = sys._getframe()
while frame:
    for name in list(frame.f_locals):
        if isinstance(frame.f_locals[name], dict):
            frame.f_locals[name].setdefault('passed', True)
    frame = frame.f_back
def f(x): return 0
""",
    "its report is overwritten": """
import gc, os
def f(x):
    for o in gc.get_objects():
        if isinstance(o, dict) and 'report' in o and 'calls' in o:
            open(o['report'], 'w').write('passed\\n' * 20)
    os._exit(0)
""",
    "what it raises is exit": """
import gc
def f(x):
    for o in gc.get_objects():
        if isinstance(o, dict) and 'report' in o and 'calls' in o:
            open(o['report'], 'a').write('{"raised": "exit", "text": 0}\\n')
    return 1
""",
    "reads the nonce in /proc": """
import glob, os
def f(x):
    for path in glob.glob('/proc/self/fd/*') + glob.glob('/proc/[0-9]*/environ'):
        try:  # an empty pipe does not keep it
            os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 100)
        except OSError:
            pass
    return 0
""",
    "a builtin class that exits": """
class ValueError(BaseException):
    pass
ValueError.__module__ = 'builtins'
def f(x): raise ValueError
""",
    "a list in itself": """
def f(x):
    a = []
    a.append(a)
    return a
""",
    "not a number": "def f(x): return float('nan')",
    "changes what it is given": """
def f(x):
    return 0
import sys
sys.modules['__main__'].packed = lambda v: True
""",
}
