"""`openrlhf recipes import SOURCE --to FOLDER`: a MARTI or MAPPA configuration as a recipe of ours.

What is taken, what is left out and why, and what a person should look at is written into the recipe's README. Options,
tools and placeholders that are unknown are reported together, with where they stand; nothing is written then.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from marl_plugins.commands.imports import checks, options, prompts, shapes
from marl_plugins.commands.imports.items import TASKS, apart, in_folder, read_items, with_ids
from marl_plugins.commands.imports.read import Source, read
from marl_plugins.commands.imports.shapes import KINDS, Kind, Shape
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.shipped import recipes_root
from marl_plugins.hosts import cpu
from marl_plugins.hosts.flags import FLAGS

ENDPOINTS = {
    "gemini": ("https://generativelanguage.googleapis.com/v1beta/openai/", "GEMINI_API_KEY"),
    "claude": ("https://api.anthropic.com/v1/", "ANTHROPIC_API_KEY"),
    "deepseek": ("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
}
"""OpenAI-compatible endpoints of the providers that MAPPA knows by a model's name, and where the key is looked for."""

MATH = ("math", "math_format", "simplerl_math", "aime", "amc")
"""Values of `verify_task` for which the shipped grader does."""

TINY = {
    "extends": "recipe.yaml",
    "description": "The same with random tiny models on a CPU: it shows that everything runs, and learns nothing",
    "model": "tiny:positions=4096",
}
TINY_FLAGS: dict[str, Any] = {
    "data.max_len": 4096,
    "rollout.max_new_tokens": 32,
    "ds.zero_stage": 0,
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "actor.num_nodes": 1,
    "ref.num_nodes": 1,
    "critic.num_nodes": 1,
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
}
NOT_ON_CPU = (
    *("train.colocate_all", "train.colocate_actor_ref", "vllm.enable_sleep", "ds.enable_sleep", "ds.adam_offload"),
    *("ds.attn_implementation", "vllm.sync_backend", "reward.overlong_buffer_len", "vllm.gpu_memory_utilization"),
)


@dataclass(frozen=True)
class Wanted:
    """What the command line says besides the source."""

    folder: Path
    model: str | None = None
    workflow: Kind | None = None
    grader: Path | None = None
    train_data: Path | None = None
    eval_data: Path | None = None
    skip_unknown: bool = False


@dataclass
class Import:
    """A recipe in the making, and what is to be said of it."""

    source: Source
    wanted: Wanted
    recipe: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    taken: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def unknown(self, problem: str, cure: str) -> None:
        """Something without a counterpart: a problem, or a note where unknown things are to be skipped."""
        if self.wanted.skip_unknown:
            self.notes.append(f"{problem}; it was skipped")
        else:
            self.problems.append(f"{problem}; {cure}, or give --skip-unknown")

    def where(self, *key: str | int) -> str:
        return self.source.origins.where(*key)


def run(source: Path, wanted: Wanted) -> int:
    """Import, write and say what was written.

    Raises:
        ConfigurationError: Everything that stands in the way, at once; nothing is written.
    """
    if wanted.folder.exists():
        raise ConfigurationError(f"{wanted.folder}: exists already; give a folder that does not")
    made = convert(source, wanted)
    try:
        _write(made.files, wanted.folder)
    except OSError as error:
        raise ConfigurationError(f"{wanted.folder}: cannot be written: {error.strerror or error}") from None
    print(f"imported {source} to {wanted.folder}: {len(made.recipe['roles'])} roles, {len(made.taken)} options taken")
    print(f"{len(made.left_out)} options were left out and {len(made.notes)} things are to be looked at: see README.md")
    for note in made.notes:
        print(f"  look at: {note}")
    folder, tiny = (shlex.quote(str(path)) for path in (wanted.folder, wanted.folder / "tiny.yaml"))
    print(f"  openrlhf recipes show {folder}")
    print(
        f"  openrlhf train --recipe {folder} --dry-run            # on GPUs; {cpu.DEVICE}=cuda before it plans for them elsewhere"
    )
    print(f"  openrlhf train --recipe {tiny} --dry-run  # on a CPU")
    return 0


def _write(files: Mapping[str, str], folder: Path) -> None:
    """All files or none: beside the folder first, and moved there when they are complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        whole = Path(beside) / folder.name
        for name, text in files.items():
            path = whole / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        whole.rename(folder)


def convert(path: Path, wanted: Wanted) -> Import:
    """The recipe's files.

    Raises:
        ConfigurationError: Everything that is wrong, at once.
    """
    made = Import(read(path), wanted)
    checks.check_form(made.source)
    settings = made.source.settings
    for problem in checks.unknown(made.source):
        made.unknown(problem, "delete it")
    shape = _shape(made)
    agents = _agents(made)
    if wrong := checks.numbers(made.source, agents):
        raise ConfigurationError([*made.problems, *wrong])
    roles: dict[str, dict[str, Any]] = {}
    for theirs, config in agents:
        name = str(config.get("role") or theirs)
        roles[shapes.identifier(theirs if not theirs.isdigit() else name, list(roles))] = config
    names = _names(agents, list(roles))
    made.recipe.update(
        name=shapes.identifier(wanted.folder.name, ()),
        description=f"{settings.get('agent_workflow') or shape.kind} of {len(roles)} agents, imported from {path.name}",
    )
    texts = _prompts(made, shape, roles, names)
    _roles(made, shape, roles, texts)
    _policies(made, roles)
    _flags(made, roles)
    _coach(made)
    _grader(made)
    _data(made)
    if made.problems:
        raise ConfigurationError(list(dict.fromkeys(made.problems)))
    _tiny(made)
    made.files["recipe.yaml"] = yaml.safe_dump(made.recipe, sort_keys=False, width=120, allow_unicode=True)
    made.files["README.md"] = _readme(made)
    return made


def _shape(made: Import) -> Shape:
    settings = made.source.settings
    name = shapes.shape_name(settings.get("workflow_func_path"), settings.get("agent_workflow"))
    if name in shapes.SHAPES and made.wanted.workflow in (None, shapes.SHAPES[name].kind):
        return shapes.SHAPES[name]
    if made.wanted.workflow is not None:
        made.notes.append(f"workflow.py: begins as a {made.wanted.workflow}; theirs ({name}) is Python to be written again")
        return Shape(made.wanted.workflow)
    key = "workflow_func_path" if settings.get("workflow_func_path") else "agent_workflow"
    known = ", ".join(shapes.SHAPES)
    made.problems.append(
        f"{made.where(key)}: {key}: the workflow {name!r} has no counterpart (known: {known}); give --workflow "
        f"{', '.join(KINDS)} for one to begin with"
    )
    return Shape("chain")


def _agents(made: Import) -> list[tuple[str, dict[str, Any]]]:
    """The agents, each with all settings that hold for it."""
    settings = made.source.settings
    shared = {k: v for k, v in settings.items() if k in options.FLAGS_OF or k in ("pretrain", "is_tuning")}
    shared |= settings.get("default_agent") or {}
    found = []
    for agent in settings["agents"]:
        found += [(str(name), {**shared, "role": None, **(config or {})}) for name, config in agent.items()]
    return found


def _names(agents: Sequence[tuple[str, Mapping[str, Any]]], roles: Sequence[str]) -> dict[str, str]:
    """What templates call the agents, and our names."""
    names: dict[str, str] = {}
    for (theirs, config), ours in zip(agents, roles, strict=True):
        for name in (theirs, str(config.get("role") or theirs)):
            names.setdefault(name, ours)
    return names


def _prompts(made: Import, shape: Shape, roles: Mapping[str, Mapping[str, Any]], names: dict[str, str]) -> dict[str, str]:
    """A prompt for every role; the second one of a debate's roles as `ROLE_again`."""
    settings, order = made.source.settings, list(roles)
    written: list[tuple[str, str]] = []
    workflow = settings.get("workflow_func_path")
    path = made.source.find(str(workflow).replace("openrlhf/", "marti/", 1)) if workflow else None
    own = [bool(config.get("chat_template") or settings.get("chat_template")) for config in roles.values()]
    if path is not None and not all(own):
        written = prompts.prompts_in(path)
    texts = {}
    for number, (name, config) in enumerate(roles.items()):
        templates = config.get("chat_template") or settings.get("chat_template") or []
        templates = [templates] if isinstance(templates, str) else list(templates)
        wanted = [name, f"{name}_again"] if shape.kind == "debate" else [name]
        for place, key in enumerate(wanted):
            earlier = order[:number] if shape.kind == "chain" else []
            braces, text = False, None
            where = f"the template of {name!r}"
            if place < len(templates):
                text = str(templates[place])
            elif shape.kind != "mixture" and len(written) == (len(order) if shape.kind == "chain" else 2):
                (variable, text), braces = written[number if shape.kind == "chain" else place], True
                where = f"{path}: {variable}"
                made.taken.append((variable, f"`prompts/{key}.md`"))
            if text is None:
                texts[key] = prompts.neutral_prompt(earlier)
                if place or (shape.kind == "mixture" and number == len(order) - 1):
                    texts[key] += "\nWhat others answered:\n{others}\n"
                made.notes.append(f"prompts/{key}.md: no prompt was found for it; write it")
                continue
            texts[key] = _prompt(made, text, order, names, braces, where)
            there = {"problem", *earlier, *(["others"] if place or (shape.kind == "mixture" and number) else [])}
            there |= {"computed"} if any(n < number for n in shape.tools) else set()
            for odd in [f for f in prompts.fields_of(texts[key]) if f not in there]:
                made.problems.append(f"{where}: {odd!r} is not known yet when {name!r} is asked")
            if "problem" not in prompts.fields_of(texts[key]):
                made.notes.append(f"prompts/{key}.md: does not show the task ({{problem}})")
    made.files.update({f"prompts/{key}.md": text for key, text in texts.items()})
    return texts


def _prompt(made: Import, text: str, order: list[str], names: dict[str, str], braces: bool, where: str) -> str:
    try:
        new, leaks, unknown = prompts.role_prompt(text, order, names, braces)
    except ValueError as error:  # a brace that is not closed
        made.problems.append(f"{where}: {error}; write {{{{ and }}}} for braces")
        return prompts.escaped(text)
    made.problems += [f"{where}: {problem}" for problem in leaks]
    for problem in unknown:
        made.unknown(f"{where}: {problem}", "take it out of the prompt")
    return new


def _roles(made: Import, shape: Shape, roles: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]) -> None:
    """`roles:`, `tools:` and `workflow.py`."""
    settings = made.source.settings
    arguments, tools = settings.get("workflow_args") or {}, settings.get("tools_config") or {}
    written: dict[str, Any] = {}
    for number, (name, config) in enumerate(roles.items()):
        role: dict[str, Any] = {"prompt": f"prompts/{name}.md"}
        turns_key = shape.turns[number] if number < len(shape.turns) else None
        turns = int(arguments.get(turns_key) or (number in shape.tools and tools.get("max_turns")) or 1)
        if number in shape.tools or config.get("code_execution"):
            role["tools"] = ["python"]
            if turns > 1:
                role |= {"max_turns": turns, "endless_tools": "go_on"}
        elif turns > 1:
            made.notes.append(f"{made.where('workflow_args', turns_key or '')}: {name} has no tools, so it has one turn")
        if turns_key in arguments:
            made.taken.append((f"workflow_args.{turns_key}", f"`roles.{name}.max_turns`"))
        written[name] = role
        if f"{name}_again" in texts:
            written[f"{name}_again"] = {**role, "prompt": f"prompts/{name}_again.md"}
        if config.get("is_api_model"):
            what = f"{made.where('agents')}: is_api_model: a model behind an API cannot play {name!r}; a policy would"
            made.unknown(what, "delete it to train its pretrain in its place")
    made.recipe["roles"] = written
    made.recipe["workflow"] = "workflow.py"
    order = list(roles)
    if shape.kind == "chain":
        made.files["workflow.py"] = shapes.chain(texts, [n for n, role in written.items() if "tools" in role])
        rounds = arguments.get("num_rounds")
        if rounds not in (None, len(order)):
            made.notes.append(f"{made.where('workflow_args', 'num_rounds')}: num_rounds {rounds}: the chain here runs once")
    elif shape.kind == "debate":
        rounds, most = int(arguments.get("num_rounds") or len(order)), int(arguments.get("max_others") or 5)
        flags = arguments.get("contain_self") is not False, arguments.get("shuffle_responses") is not False
        made.files["workflow.py"] = shapes.debate(order, texts[f"{order[0]}_again"], rounds, flags[0], most, flags[1])
        made.recipe["mapping"] = {role: role.removesuffix("_again") for role in written}
    else:
        made.files["workflow.py"] = shapes.mixture(order, texts[order[-1]])
        if arguments.get("num_rounds") not in (None, 2):
            made.notes.append(f"{made.where('workflow_args', 'num_rounds')}: the proposers here answer once")
    seconds = [config["timeout"] for config in (tools.get("tools") or {}).values() if config.get("timeout")]
    if seconds and any("tools" in role for role in written.values()):
        made.recipe["tools"] = {"python": {"seconds": float(seconds[0])}}
        made.taken.append(("tools_config.tools.NAME.timeout", f"`tools.python.seconds: {seconds[0]}`"))


def _policies(made: Import, roles: Mapping[str, Mapping[str, Any]]) -> None:
    """`mapping:`, `model:` and `policies:`."""
    settings, wanted = made.source.settings, made.wanted
    models = {name: config.get("pretrain") for name, config in roles.items()}
    if wanted.model is None:
        for name, model in models.items():
            if not model or "$" in str(model):
                got = f"{model!r}, which only the shell knew" if model else "none"
                made.problems.append(
                    f"{made.where('agents')}: pretrain: agent {name!r} has {got}; give --model NAME_OR_FOLDER"
                )
    else:
        models = dict.fromkeys(models, wanted.model)
    if settings.get("shared_agents"):
        made.recipe["mapping"] = "shared"
        made.recipe["model"] = next(iter(models.values()))
        frozen = [name for name, config in roles.items() if config.get("is_tuning") is False]
        if frozen:
            made.notes.append(
                f"shared_agents: {', '.join(frozen)} not to be trained, but one policy plays all; it is trained"
            )
        return
    same = len(set(map(str, models.values()))) == 1
    if same:
        made.recipe["model"] = next(iter(models.values()))
    policies: dict[str, dict[str, Any]] = {}
    for name, config in roles.items():
        policy: dict[str, Any] = {} if same else {"model": models[name]}
        if config.get("is_tuning") is False:
            policy["trainable"] = False
        if policy:
            policies[name] = policy
    made.recipe.update({"policies": policies} if policies else {})


def _flags(made: Import, roles: Mapping[str, Mapping[str, Any]]) -> None:
    """`flags:`, and those of single policies where agents differ."""
    source, settings = made.source, made.source.settings
    flags: dict[str, Any] = {}
    shared = bool(settings.get("shared_agents"))
    estimators = {config.get("advantage_estimator") for config in roles.values()} - {None}
    estimator = options.ESTIMATORS.get(str(next(iter(estimators), "reinforce_plus_plus")))
    if not estimators:
        made.notes.append("no advantage_estimator is given (theirs is then gae): reinforce is used here")
    if len(estimators) > 1 or estimator is None:
        got = ", ".join(sorted(map(str, estimators)))
        known = ", ".join(options.ESTIMATORS)
        made.problems.append(
            f"{made.where('agents')}: advantage_estimator: got {got}; expected one of {known}, for all agents"
        )
    own = {key[-1] for key in source.origins.lines if key and key not in source.inherited}
    for theirs, option in options.FLAGS_OF.items():
        values = {name: config[theirs] for name, config in roles.items() if theirs in config}
        kept = {name: option.form(v) for name, v in values.items() if v is not None and v is not False}
        kept = {name: v for name, v in kept.items() if v is not None}
        if not kept:
            continue
        only = options.only_with(option.flag)
        if only and estimator not in only:
            if theirs in own:
                made.left_out.append((theirs, f"only with estimator {', '.join(only)}"))
            continue
        if len(set(map(repr, kept.values()))) == 1 and len(kept) == len(roles):
            flags[option.flag] = next(iter(kept.values()))
            made.taken.append(
                (theirs, f"`{option.flag}: {flags[option.flag]}`" + (f" ({option.note})" if option.note else ""))
            )
        elif shared or FLAGS[option.flag].status != "policy":
            got = ", ".join(f"{name} {value}" for name, value in kept.items())
            made.problems.append(
                f"{made.where('agents')}: {theirs} differs between agents ({got}); here it is one for all: make them equal"
            )
        else:
            for name, value in kept.items():
                policies = made.recipe.setdefault("policies", {})
                policies.setdefault(name, {}).setdefault("flags", {})[option.flag] = value
            made.taken.append((theirs, f"`{option.flag}` of single policies"))
    for place, mapping in ((), settings), (("default_agent",), settings.get("default_agent") or {}):
        made.left_out += [
            (name, options.LEFT_OUT[name])
            for name in mapping
            if name in options.LEFT_OUT and (*place, name) not in source.inherited and mapping[name] not in (None, False)
        ]
    for agent in settings["agents"]:
        for config in agent.values():
            made.left_out += [(name, options.LEFT_OUT[name]) for name in config or {} if name in options.LEFT_OUT]
    for name in settings.get("workflow_args") or {}:
        if name in options.WORKFLOW_LEFT_OUT:
            made.left_out.append((f"workflow_args.{name}", options.WORKFLOW_LEFT_OUT[name]))
    made.left_out = list(dict.fromkeys(made.left_out))
    if estimator in options.GROUPED:
        flags["groups.by"] = "task+role+turn"
        made.notes.append(
            f"estimator {estimator}: groups are of the same task, role and turn (groups.by), which theirs are not"
        )
    _lengths(made, roles, flags)
    if flags.get("train.colocate_all"):
        ranks = flags.get("actor.num_nodes", 1) * flags.get("actor.num_gpus_per_node", 8)
        per_engine = flags.get("vllm.tensor_parallel_size", 1)
        if flags.get("vllm.num_engines", 1) * per_engine != ranks and ranks % per_engine == 0:
            made.notes.append(
                f"colocate_all_models: {flags.get('vllm.num_engines')} engines and {ranks} ranks cannot share devices, there nor "
                f"here; vllm.num_engines: {ranks // per_engine} was taken"
            )
            flags["vllm.num_engines"] = ranks // per_engine
    trajectories = flags.get("rollout.batch_size", 1024) * flags.get("rollout.n_samples_per_prompt", 1)
    batch = flags.get("train.batch_size")
    if batch and trajectories % batch:
        fits = max(n for n in range(1, min(batch, trajectories) + 1) if trajectories % n == 0)
        made.notes.append(f"train_batch_size {batch} does not divide a step's {trajectories} trajectories; {fits} is taken")
        flags["train.batch_size"] = fits
    made.recipe["flags"] = flags


def _lengths(made: Import, roles: Mapping[str, Mapping[str, Any]], flags: dict[str, Any]) -> None:
    """`data.max_len`, the length of prompt and answer together."""
    settings = made.source.settings
    config = {**settings, **next(iter(roles.values()))}
    longest = config.get("max_len") or None
    if longest is None and config.get("prompt_max_len"):
        longest = config["prompt_max_len"] + (config.get("generate_max_len") or 1024)
    if longest is not None:
        flags["data.max_len"] = int(longest)
        made.taken.append(("max_len, prompt_max_len", f"`data.max_len: {longest}`"))


def _coach(made: Import) -> None:
    """The coach's flags and prompts."""
    arguments = made.source.settings.get("workflow_args") or {}
    model, template = arguments.get("coach_model"), arguments.get("coach_prompt_template")
    if not model:
        if template:
            made.notes.append("coach_prompt_template: there is no coach_model, so no coach; the template was not taken")
        return
    flags = made.recipe["flags"]
    made.recipe["plugins"] = ["marl_plugins.coach"]
    flags["coach.model"] = model
    for theirs, ours in options.COACH_FLAGS.items():
        if arguments.get(theirs) is not None:
            flags[ours] = arguments[theirs]
            made.taken.append((f"workflow_args.{theirs}", f"`{ours}: {arguments[theirs]}`"))
    url, variable = next((v for prefix, v in ENDPOINTS.items() if str(model).startswith(prefix)), ("", ""))
    if url:
        flags |= {"coach.base_url": url, "coach.api_key_env": variable}
        made.notes.append(
            f"coach.base_url: {url} is the endpoint for {model}, its key in ${variable}; change it if yours is another"
        )
    if arguments.get("enable_ground_truth_eval") is False:
        flags["coach.ground_truth"] = "none"
    if template:
        try:
            where = f"{made.where('workflow_args', 'coach_prompt_template')}: coach_prompt_template"
            common, last, notes = prompts.coach_prompts(str(template), where)
        except prompts.Unknown as error:
            made.problems += [f"{problem}; take it out of the template" for problem in error.problems]
            return
        made.files |= {"prompts/coach.md": common, "prompts/coach_last.md": last}
        flags |= {"coach.prompt": "prompts/coach.md", "coach.last_prompt": "prompts/coach_last.md"}
        made.taken.append(("workflow_args.coach_prompt_template", options.WORKFLOW_READ["coach_prompt_template"]))
        made.notes += notes


def _grader(made: Import) -> None:
    """`grader.py`: the one given, or the shipped one for mathematics."""
    task = str(made.source.settings.get("verify_task", "math"))
    path = made.wanted.grader or (recipes_root() / "mathchat" / "grader.py" if task in MATH else None)
    if path is not None:
        try:
            made.files["grader.py"] = path.read_text(encoding="utf-8")
        except OSError as error:
            made.problems.append(f"--grader {path}: cannot be read: {error.strerror}")
        made.recipe["grader"] = "grader.py"
        made.taken.append(("verify_task", f"`grader.py` ({task})"))
        return
    what = f"{made.where('verify_task')}: verify_task {task!r} has no grader here"
    if "plugins" in made.recipe:
        made.notes.append(
            f"{what}: the coach alone scores, and an evaluation counts nothing until there is one (--grader FILE)"
        )
    else:
        made.problems.append(f"{what}; give --grader FILE with score_outcome(trajectory)")


def _data(made: Import) -> None:
    """`data/*.jsonl` and `tasks.py`."""
    settings = made.source.settings
    keys = [settings.get(name) for name in ("input_key", "label_key", "metadata_key")]
    train = _file(made, "prompt_data", made.wanted.train_data, str(settings.get("prompt_split") or "train"), needed=True)
    evaluations: list[Path | None] = [made.wanted.eval_data] if made.wanted.eval_data else []
    if not evaluations and settings.get("eval_dataset"):
        evaluations = [_file(made, "eval_dataset", None, str(settings.get("eval_split") or "test"), needed=False)]
    if not evaluations and settings.get("extra_eval_tasks") and settings.get("extra_eval_dir"):
        folder = made.source.find(str(settings["extra_eval_dir"]))
        for name in settings["extra_eval_tasks"]:
            path = in_folder(folder, str(name)) if folder else None
            evaluations.append(path)
            if path is None:
                made.notes.append(f"extra_eval_tasks: {name} was not found; give --eval-data FILE for held-out tasks")
    if train is None:
        return
    try:
        items = read_items(train, *keys)
        held_out = [item for path in evaluations if path for item in read_items(path, *keys)]
    except ConfigurationError as error:
        made.problems += error.problems
        return
    held_out, both = apart(items, held_out)
    if both:
        made.notes.append(f"data/eval.jsonl: {both} items are trained on too and were left out of it")
    if not held_out:
        made.notes.append("there are no held-out tasks: an evaluation has nothing to count (--eval-data FILE)")
        for name in ("eval.steps", "eval.temperature", "eval.n_samples_per_prompt"):
            made.recipe["flags"].pop(name, None)
    for split, found, prefix in (("train", items, ""), ("eval", held_out, "eval-")):
        if found:
            rows = [json.dumps(item, ensure_ascii=False) for item in with_ids(found, prefix)]
            made.files[f"data/{split}.jsonl"] = "\n".join(rows) + "\n"
            made.taken.append((f"{split} data", f"`data/{split}.jsonl`, {len(rows)} tasks"))
    made.files["tasks.py"] = TASKS
    made.recipe["tasks"] = "tasks.py"
    taken = min(len(items), made.recipe["flags"].get("data.max_samples", math.inf))
    samples = made.recipe["flags"].get("rollout.n_samples_per_prompt", 1)
    if taken * samples < made.recipe["flags"].get("train.batch_size", 1):
        batch = made.recipe["flags"]["train.batch_size"]
        made.problems.append(
            f"{train}: {taken} tasks x {samples} samples are fewer than the {batch} trajectories of train_batch_size; "
            "give more data (--train-data FILE), or lower train_batch_size in a copy of the source"
        )


def _file(made: Import, key: str, given: Path | None, split: str, *, needed: bool) -> Path | None:
    """A data file that the source or the command line names."""
    if given is not None:
        return given
    flag = "--train-data" if needed else "--eval-data"
    name = str(made.source.settings.get(key) or "").removeprefix("json@")
    place = made.source.find(name) if name else None
    found = in_folder(place, split) if place else None
    if found is None:
        got = f"{name} ({split}) was not found beside the source or above it" if name else "is not given"
        where = made.where(key)
        (made.problems if needed else made.notes).append(f"{where}: {key}: {got}; give {flag} FILE.json or .jsonl")
    return found


def _tiny(made: Import) -> None:
    """`tiny.yaml`: the same on a CPU."""
    flags = dict(TINY_FLAGS)
    if options.ESTIMATORS["gae"] != made.recipe["flags"].get("algo.advantage.estimator"):
        flags = {name: value for name, value in flags.items() if not name.startswith("critic.")}
    flags |= {name: None for name in NOT_ON_CPU if name in made.recipe["flags"]}
    tiny: dict[str, Any] = {**TINY, "flags": flags}
    policies: dict[str, Any] = {}
    for name, policy in made.recipe.get("policies", {}).items():
        over = {"model": None} if "model" in policy else {}
        over |= {"flags": None} if "flags" in policy else {}
        policies |= {name: over} if over else {}
    made.files["tiny.yaml"] = yaml.safe_dump({**tiny, **({"policies": policies} if policies else {})}, sort_keys=False)


def _readme(made: Import) -> str:
    def rows(pairs: Iterable[tuple[str, str]], second: str) -> str:
        found = "\n".join(f"| `{theirs}` | {what} |" for theirs, what in pairs)
        return f"| theirs | {second} |\n|---|---|\n{found}\n"

    notes = "\n".join(f"- {note}" for note in made.notes) or "Nothing."
    return (
        f"# {made.recipe['name']}: {made.recipe['description']}\n\n"
        "    openrlhf train --recipe recipe.yaml --dry-run   # the plan, for GPUs\n"
        "    openrlhf train --recipe tiny.yaml               # with tiny models on a CPU: it runs, and learns nothing\n\n"
        f"Prompts and data are from {made.source.path}, whose licence holds for them.\n\n"
        f"## To look at\n\n{notes}\n\n## Taken\n\n{rows(made.taken, 'here')}\n"
        f"## Left out\n\n{rows(made.left_out, 'why')}"
    )


def wanted_from(arguments: Any) -> Wanted:
    """From the parsed command line."""
    return Wanted(
        folder=arguments.to,
        model=arguments.model,
        workflow=cast("Kind | None", arguments.workflow),
        grader=arguments.grader,
        train_data=arguments.train_data,
        eval_data=arguments.eval_data,
        skip_unknown=arguments.skip_unknown,
    )
