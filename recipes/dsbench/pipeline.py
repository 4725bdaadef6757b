"""The ten decisions of the tiny recipe: a word each, which becomes a real pandas and scikit-learn
program.

    engineer   impute, encode, save             train.csv, test.csv          -> X_train.csv,
        y_train.csv, X_test.csv, ids.csv
    modeler    scale, target, model, size, keep X_train.csv, y_train.csv     -> model.joblib
    analyst    predict, write                   X_test.csv, ids.csv, model   -> submission.csv

Each program runs in the workspace of its trajectory and knows nothing of the others but their
files, so a wrong word often shows in the program of another role. `right` says which words are
right for a task.
"""

from dataclasses import dataclass

ROLES = ("engineer", "modeler", "analyst")


@dataclass(frozen=True)
class Stage:
    """One decision.

    Args:
        role: Whose it is.
        needs, makes: Files that its program reads, and those that it leaves where the word is
            right.
        head, tail: The program before and after the word's own lines.
        options: The lines of each word.
    """

    name: str
    role: str
    needs: tuple
    makes: tuple
    head: str
    options: dict
    tail: str = ""


STAGES = (
    Stage(
        "impute",
        "engineer",
        ("train.csv", "test.csv"),
        ("train_imputed.csv", "test_imputed.csv"),
        """import pandas as pd

train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
numbers = [c for c in test.select_dtypes("number") if c != ID]
""",
        {
            "median": """middle = train[numbers].median()
train[numbers], test[numbers] = train[numbers].fillna(middle), test[numbers].fillna(middle)
""",
            "zero": """train[numbers], test[numbers] = train[numbers].fillna(0), test[numbers].fillna(0)
""",  # noqa: E501
            "none": "",
            "drop": """gaps = [c for c in numbers if train[c].isna().any() or test[c].isna().any()]
train, test = train.drop(columns=gaps), test.drop(columns=gaps)
""",
        },
        """train.to_csv("train_imputed.csv", index=False)
test.to_csv("test_imputed.csv", index=False)
""",
    ),
    Stage(
        "encode",
        "engineer",
        ("train_imputed.csv", "test_imputed.csv"),
        ("train_encoded.csv", "test_encoded.csv"),
        """import pandas as pd

train, test = pd.read_csv("train_imputed.csv"), pd.read_csv("test_imputed.csv")
texts = [c for c in test.select_dtypes(exclude="number") if c != ID]
""",
        {
            "onehot": """known = pd.concat([train[texts], test[texts]])
known = pd.get_dummies(known, dtype=float) if texts else known
train = train.drop(columns=texts).join(known[: len(train)])
test = test.drop(columns=texts).join(known[len(train) :])
""",
            "codes": """for c in texts:
    order = {text: n for n, text in enumerate(sorted({*train[c], *test[c]}))}
    train[c], test[c] = train[c].map(order), test[c].map(order)
""",
            "drop": """train, test = train.drop(columns=texts), test.drop(columns=texts)
""",
            "none": "",
        },
        """train.to_csv("train_encoded.csv", index=False)
test.to_csv("test_encoded.csv", index=False)
""",
    ),
    Stage(
        "save",
        "engineer",
        ("train_encoded.csv", "test_encoded.csv"),
        ("X_train.csv", "y_train.csv", "X_test.csv", "ids.csv"),
        """import pandas as pd

train, test = pd.read_csv("train_encoded.csv"), pd.read_csv("test_encoded.csv")
features = [c for c in test if c != ID]
train[TARGETS].to_csv("y_train.csv", index=False)
""",
        {
            "all": """train[features].to_csv("X_train.csv", index=False)
test[features].to_csv("X_test.csv", index=False)
test[[ID]].to_csv("ids.csv", index=False)
""",
            "train": """train[features].to_csv("X_train.csv", index=False)
""",
            "noids": """train[features].to_csv("X_train.csv", index=False)
test[features].to_csv("X_test.csv", index=False)
""",
            "swapped": """test[features].to_csv("X_train.csv", index=False)
train[features].to_csv("X_test.csv", index=False)
test[[ID]].to_csv("ids.csv", index=False)
""",
        },
    ),
    Stage(
        "scale",
        "modeler",
        (),
        ("steps.joblib",),
        "import joblib\n",
        {
            "standard": "from sklearn.preprocessing import StandardScaler\n\nsteps = "
            "[StandardScaler()]\n",
            "none": "\nsteps = []\n",
            "normal": "from sklearn.preprocessing import Normalizer\n\nsteps = [Normalizer()]\n",
            "binary": "from sklearn.preprocessing import Binarizer\n\nsteps = [Binarizer()]\n",
        },
        'joblib.dump(steps, "steps.joblib")\n',
    ),
    Stage(
        "target",
        "modeler",
        ("y_train.csv",),
        ("target.joblib",),
        """import joblib
import pandas as pd

y, log = pd.read_csv("y_train.csv").squeeze("columns"), False
""",
        {
            "plain": "",
            "log": "log = True\n",
            "rank": "y = y.rank(pct=True)\n",
            "lagged": "y = y.shift(1).bfill()\n",
        },
        'joblib.dump((y, log), "target.joblib")\n',
    ),
    Stage(
        "model",
        "modeler",
        (),
        ("estimator.joblib",),
        "import joblib\n",
        {
            "logit": "from sklearn.linear_model import LogisticRegression\n\nestimator = "
            "LogisticRegression(max_iter=500)\n",
            "ridge": "from sklearn.linear_model import Ridge\n\nestimator = Ridge()\n",
            "near": "from sklearn.neighbors import KNeighborsClassifier\n\nestimator = "
            "KNeighborsClassifier(15)\n",
            "stump": "from sklearn.tree import DecisionTreeClassifier\n\nestimator = "
            "DecisionTreeClassifier(max_depth=1)\n",
        },
        'joblib.dump(estimator, "estimator.joblib")\n',
    ),
    Stage(
        "size",
        "modeler",
        ("X_train.csv", "steps.joblib", "target.joblib", "estimator.joblib"),
        ("fitted.joblib",),
        """import joblib
import numpy as np
import pandas as pd
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import make_pipeline

X, steps = pd.read_csv("X_train.csv"), joblib.load("steps.joblib")
(y, log), estimator = joblib.load("target.joblib"), joblib.load("estimator.joblib")
if log:
    estimator = TransformedTargetRegressor(estimator, func=np.log1p, inverse_func=np.expm1)
""",
        {
            "all": "rows = len(y)\n",
            "dozen": "rows = 12\n",
            "eight": "rows = 8\n",
            "four": "rows = 4\n",
        },
        'joblib.dump(make_pipeline(*steps, estimator).fit(X[:rows], y[:rows]), "fitted.joblib")\n',
    ),
    Stage(
        "keep",
        "modeler",
        ("fitted.joblib",),
        ("model.joblib",),
        """import joblib

model = joblib.load("fitted.joblib")
""",
        {
            "model": 'joblib.dump(model, "model.joblib")\n',
            "params": 'open("model.txt", "w").write(str(model.get_params()))\n',
            "scores": 'open("score.txt", "w").write("fitted")\n',
            "elsewhere": 'joblib.dump(model, "best_model.joblib")\n',
        },
    ),
    Stage(
        "predict",
        "analyst",
        ("X_test.csv", "model.joblib"),
        ("predictions.csv",),
        """import joblib
import pandas as pd

X, model = pd.read_csv("X_test.csv"), joblib.load("model.joblib")
""",
        {
            "class": "said = model.classes_[model.predict_proba(X).argmax(axis=1)]\n",
            "proba": "said = model.predict_proba(X)[:, 1]\n",
            "value": "said = model.predict(X).astype(float)\n",
            "sign": "said = (model.predict(X) > 0).astype(int)\n",
        },
        'pd.DataFrame(said, columns=TARGETS).to_csv("predictions.csv", index=False)\n',
    ),
    Stage(
        "write",
        "analyst",
        ("ids.csv", "predictions.csv"),
        ("submission.csv",),
        """import pandas as pd

ids, said = pd.read_csv("ids.csv"), pd.read_csv("predictions.csv")
if len(ids) != len(said):
    raise ValueError(f"predictions.csv has {len(said)} rows, ids.csv {len(ids)}")
out = pd.concat([ids, said], axis=1)
""",
        {
            "submission": 'out.to_csv("submission.csv", index=False)\n',
            "index": 'out.drop(columns=ID).to_csv("submission.csv")\n',
            "answer": 'out.to_csv("answer.csv", index=False)\n',
            "head": 'out.head(20).to_csv("submission.csv", index=False)\n',
        },
    ),
)
BY_ROLE = {role: tuple(stage for stage in STAGES if stage.role == role) for role in ROLES}
MAKERS = {file: stage for stage in STAGES for file in stage.makes}
"""Which stage has to make a file."""
SIMPLE = {
    "encode": "onehot",
    "save": "all",
    "scale": "standard",
    "size": "all",
    "keep": "model",
    "write": "submission",
}
"""Words that are right for every task."""


def expand(stage, word, id_column, targets):
    """The program that a word stands for; of a word that the stage does not have, one that says so
    and fails."""
    names = f"ID, TARGETS = {id_column!r}, {list(targets)!r}\n"
    if word not in stage.options:
        problem = f"{stage.name}: got {word[:40]!r}, expected one of {', '.join(stage.options)}"
        return f"raise SystemExit({problem!r})\n"
    return names + stage.head + stage.options[word] + stage.tail


def right(stage, words):
    """The word that is right for a task whose card says `words`: its metric, `linear` or `bent`,
    `gaps` or `absent`."""
    metric, shape, gaps = words.split()[:3]
    classes = metric in ("accuracy", "f1_macro")
    match stage:
        case "impute":
            return "median" if gaps == "gaps" else "zero"
        case "target":
            return "log" if metric == "rmsle" else "plain"
        case "model":
            return (
                "near"
                if shape == "bent"
                else "logit"
                if classes or metric == "roc_auc"
                else "ridge"
            )
        case "predict":
            return "class" if classes else "proba" if metric == "roc_auc" else "value"
    return SIMPLE[stage]
