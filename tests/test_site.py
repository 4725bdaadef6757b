"""The docs site is built without network; its links and anchors lead somewhere, and the commands of
two pages are plans."""

import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).parent.parent
METHODS, NO_EFFECT = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("methods", "no_effect")
)


class Page(HTMLParser):
    """The links, what is loaded, and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if "id" in found:
            self.anchors.add(found["id"])
        if tag == "a" and found.get("href"):
            self.links.add(found["href"])
        if tag in ("script", "img") and found.get("src"):
            self.loaded.add(found["src"])
        if tag == "link" and {*found.get("rel", "").split()} & {"stylesheet", "preload", "icon"}:
            self.loaded.add(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="pip install zensical")
    folder = tmp_path_factory.mktemp("site") / "site"
    subprocess.run([sys.executable, ROOT / ".ci" / "site", folder], check=True)
    return {path: Page(path.read_text()) for path in folder.glob("*.html")}


def test_every_link_and_anchor_of_the_site_leads_somewhere(site):
    wrong = []
    for path, page in site.items():
        for link in page.links | page.loaded if path.name != "404.html" else ():
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                parts.fragment and unquote(parts.fragment) not in site[target].anchors
            ):
                wrong.append((path.name, link))
    assert len(site) > 20 and not wrong


def test_the_site_loads_nothing_from_elsewhere(site):
    assert not {link for page in site.values() for link in page.loaded if urlsplit(link).netloc}


def test_every_page_is_in_the_navigation():
    listed = re.findall(r'"([a-z_]+)\.md"', (ROOT / ".ci" / "site.toml").read_text())
    assert sorted(listed) == sorted(
        [*(path.stem for path in (ROOT / "docs").glob("*.md")), "index"]
    )


@pytest.mark.parametrize("words", re.findall(r"`(--recipe [^`]+)` \|$", METHODS, re.MULTILINE))
def test_every_command_of_the_methods_page_is_a_plan(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert build_plan([*shlex.split(words), "--dry-run"]).run.policies


@pytest.mark.parametrize(
    ("line", "words"), re.findall(r"^(\| .* \|) `(--recipe [^`]+)` \|$", NO_EFFECT, re.MULTILINE)
)
def test_the_plan_says_of_a_flag_without_effect_what_the_page_says(line, words, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda" if "| cuda |" in line else "cpu")
    said = line.split("|")[-2].strip().strip("`")
    try:
        found = build_plan([*shlex.split(words), "--dry-run"]).run.warnings
    except ConfigurationError as error:
        found = error.problems
    codes = {problem.code for problem in found}
    assert said in codes if said != "nothing" else not codes
