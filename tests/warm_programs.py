"""Programs in plain processes that are forked from one which has imported pandas and scikit-learn; for tests of recipes."""

import multiprocessing
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """What a program did."""

    ok: bool
    output: str


class Programs:
    """`run(program, folder)` runs one in a process of its own, whose working folder is `folder`."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()

    def run(self, program, folder):
        self.connection.send((program, str(folder)))
        return Ran(*self.connection.recv())

    def close(self):
        self.connection.send(None)
        self.process.join()


def serve(connection):
    os.environ["OMP_NUM_THREADS"] = "1"  # no thread exists at a fork
    import joblib  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.compose
    import sklearn.linear_model
    import sklearn.neighbors
    import sklearn.pipeline
    import sklearn.preprocessing
    import sklearn.tree  # noqa: F401

    while asked := connection.recv():
        program, folder = asked
        log = Path(folder).with_suffix(".log")
        child = os.fork()
        if child == 0:
            execute(program, folder, log)
        _, status = os.waitpid(child, 0)
        connection.send((status == 0, log.read_text()))


def execute(program, folder, log):
    """Run a program and end the process, with what it prints and raises in a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(folder)
        warnings.simplefilter("ignore")
        code = 0
        try:
            exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            print(end.code, file=sys.stderr)
            code = 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
