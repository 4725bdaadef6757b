"""Programs in plain processes that are forked from one which has imported pandas and scikit-learn;
for tests of recipes."""

import multiprocessing
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """What programs did: how many of them ended well, whether all did, and what they printed."""

    done: int
    ok: bool
    output: str


class Programs:
    """`run(folder, *programs)` runs them one after the other in a folder, up to the first that
    fails.

    They share a process and nothing else of it: the fork of one that holds scikit-learn takes
    longer than most of the programs.
    """

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()

    def run(self, folder, *programs):
        self.connection.send((str(folder), programs))
        done, output = self.connection.recv()
        return Ran(done, done == len(programs), output)

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
        folder, programs = asked
        log = Path(folder).with_suffix(".log")
        child = os.fork()
        if child == 0:
            execute(folder, programs, log)
        _, status = os.waitpid(child, 0)
        connection.send((os.waitstatus_to_exitcode(status), log.read_text()))


def execute(folder, programs, log):
    """Run programs and end the process with how many ended well as its code, with what they print
    and raise in a file."""
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.chdir(folder)
        warnings.simplefilter("ignore")
        done = 0
        try:
            for program in programs:
                exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})
                done += 1
        except SystemExit as end:
            print(end.code, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(done)
