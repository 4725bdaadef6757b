"""A language model as the coach, behind any OpenAI-compatible endpoint, through the official client.

What the agent wrote is quoted between two lines with a random word that it cannot know, and the verdict is the last line of
the answer and nothing else, so text inside an agent's output does not pass for the verdict.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, nearest
from marl_plugins.core.trajectory import Action
from marl_plugins.core.workflow import Seen, SeenLast

FIELDS = ("task", "role", "duties", "messages", "before", "action", "tools", "fence")
LABEL_FIELDS = ("label", "answer")
AROUND = r"[\s*_\[\](){}\"'`:=]*"  # what markdown and habit put around a number; no sign, no digit
VERDICT = re.compile(rf"{AROUND}score{AROUND}(10(?:\.0+)?|\d(?:\.\d+)?)\s*(?:/\s*10)?[.]?{AROUND}", re.IGNORECASE)
MALFORMED = (ValueError, TypeError, AttributeError, LookupError)
"""What reading an answer that is not in the protocol may raise."""
LONGEST = 4000
"""Characters of any one part of the prompt; longer ones keep head and tail."""


@dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how it is asked."""

    base_url: str
    model: str
    api_key_env: str
    timeout: float
    retries: int
    concurrency: int


class EndpointCoach:
    """Asks the endpoint for every action.

    Args:
        prompts: For all actions but the last, and for the last role's last action.
        duties: By role, the text of its prompt.
    """

    def __init__(self, endpoint: Endpoint, prompts: tuple[str, str], duties: Mapping[str, str]):
        self.endpoint = endpoint
        self.prompts = prompts
        self.duties = duties
        self._client: Any = None
        self._slots: asyncio.Semaphore | None = None

    def probe(self) -> None:
        """One small request before anything is started.

        Raises:
            ConfigurationError: The endpoint is down, slow, refuses the key or the model, or does not answer in the protocol.
        """
        import openai

        e = self.endpoint
        where = f"coach endpoint {e.base_url}, model {e.model!r}"
        try:
            with openai.OpenAI(base_url=e.base_url, api_key=_key(e), timeout=e.timeout, max_retries=1) as client:
                answer = client.chat.completions.create(
                    model=e.model, messages=[{"role": "user", "content": "Answer with exactly this line:\nSCORE: 7"}]
                )
                text = _text(answer)
        except openai.AuthenticationError:
            raise ConfigurationError(f"{where}: refuses the key (401); is ${e.api_key_env} right?") from None
        except openai.APITimeoutError:
            raise ConfigurationError(
                f"{where}: no answer within {e.timeout:g} s, twice; is it overloaded? --coach.timeout raises the limit"
            ) from None
        except openai.APIConnectionError as error:
            raise ConfigurationError(f"{where}: cannot be reached ({error.__cause__ or error}); is it running?") from None
        except openai.APIStatusError as error:
            raise ConfigurationError(f"{where}: HTTP {error.status_code}: {error.message[:300]}") from None
        except (openai.APIError, *MALFORMED) as error:
            raise ConfigurationError(f"{where}: does not answer as an OpenAI-compatible endpoint does: {error}") from None
        if parse_verdict(text) is None:
            raise ConfigurationError(
                f"{where}: asked to answer 'SCORE: 7' it said {text[:200]!r}, which holds no score; use a model that follows "
                "instructions"
            )

    async def score(self, action: Action, seen: Seen) -> float:
        import openai

        if self._client is None:
            e = self.endpoint
            self._client = openai.AsyncOpenAI(
                base_url=e.base_url, api_key=_key(e), timeout=e.timeout, max_retries=e.retries
            )
            self._slots = asyncio.Semaphore(e.concurrency)
        assert self._slots is not None
        prompt = render(self.prompts[isinstance(seen, SeenLast)], action, seen, self.duties[action.role])
        try:
            async with self._slots:
                answer = await self._client.chat.completions.create(
                    model=self.endpoint.model, messages=[{"role": "user", "content": prompt}], temperature=0
                )
            text = _text(answer)
        except (openai.APIError, *MALFORMED) as error:  # the client has retried what may pass
            raise InfrastructureFailure("coach", f"{type(error).__name__}: {error}") from error
        score = parse_verdict(text)
        if score is None:
            raise InfrastructureFailure("coach_verdict", f"no score in the answer {text[:200]!r}")
        action.explanation = text.strip()[-LONGEST:]
        return score


def parse_verdict(text: str) -> float | None:
    """The score in [0, 1] of an answer whose last line is `SCORE: <0-10>`; None for anything else."""
    lines = text.strip().splitlines()
    found = VERDICT.fullmatch(lines[-1].strip()) if lines else None
    return float(found.group(1)) / 10 if found else None


def read_prompt(path: Path, *, with_label: bool) -> str:
    """A prompt file, with its placeholders checked.

    Raises:
        ConfigurationError: It cannot be read, or has a placeholder that is unknown or forbidden here.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}
    except OSError as error:
        raise ConfigurationError(f"coach prompt {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"coach prompt {path}: {error}; write {{{{ and }}}} for braces") from None
    allowed = (*FIELDS, *LABEL_FIELDS) if with_label else FIELDS
    problems = []
    for name in sorted(found - set(allowed)):
        if name in LABEL_FIELDS:
            problems.append(
                f"coach prompt {path}: {{{name}}} may stand in --coach.last_prompt only: the label must not reach the score of "
                "any other action"
            )
        else:
            problems.append(f"coach prompt {path}: there is no placeholder {{{name}}}{nearest(name, allowed)}")
    problems += [
        f"coach prompt {path}: {{{name}}} is missing; without it the coach cannot see what to score"
        for name in ("action", "fence")
        if name not in found
    ]
    if problems:
        raise ConfigurationError(problems)
    return text


def render(prompt: str, action: Action, seen: Seen, duties: str) -> str:
    """The prompt for one action."""
    fields = {
        "task": shorten(seen.prompt),
        "role": action.role,
        "duties": shorten(duties),
        "messages": shorten("\n".join(f"<{role}> {text}" for role, text in seen.messages)),
        "before": shorten("\n".join(f"<{a.role}> {a.text}" for a in seen.before)) or "nothing",
        "action": shorten(action.text),
        "tools": shorten("\n".join(f"{'ok' if r.ok else 'failed'}: {r.output}" for r in action.tool_results))
        or "none used",
        "fence": secrets.token_hex(6),
    }
    if isinstance(seen, SeenLast):
        fields |= {"label": str(seen.label), "answer": str(seen.answer)}
    return prompt.format(**fields)


def shorten(text: str) -> str:
    """Head and tail of a long text."""
    if len(text) <= LONGEST:
        return text
    half = LONGEST // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _key(endpoint: Endpoint) -> str:
    return os.environ.get(endpoint.api_key_env) or "none"  # servers of one's own take any


def _text(answer: Any) -> str:
    text = answer.choices[0].message.content
    if not isinstance(text, str):
        raise ValueError(f"no text in the answer {answer!r:.200}")
    return text
