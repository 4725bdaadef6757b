"""The page of `openrlhf inspect --html` in a real browser: what it shows, its links, keys and
colours; hostile texts stay text."""

import shutil

import inspected_runs
import pytest

from marl_plugins.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="apt-get install chromium-headless-shell fonts-dejavu-core"
)
READY = "body[data-ready]"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The page of a run with hostile texts, and its trajectories."""
    folder = tmp_path_factory.mktemp("page") / "run"
    made = inspected_runs.write_run(
        folder, steps=4, tasks=6, samples=3, hostile=inspected_runs.HOSTILE
    )
    inspected_runs.write_tokenizers(folder)
    assert main(["inspect", str(folder), "--html", str(folder / "run.html")]) == 0
    return folder / "run.html", made


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        yield engine.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])


@pytest.fixture
def page(browser, run):
    """An open page; at its end nothing was written to the console, and nothing but the page was
    asked for."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(run[0].as_uri())
    page.wait_for_selector(READY)
    yield page
    assert not said and {url.partition("#")[0] for url in asked} == {run[0].as_uri()}
    context.close()


def go(page, fragment):
    """Follow a link of the page, and wait until it is shown."""
    before = page.get_attribute("body", "data-ready")
    page.evaluate("fragment => { location.hash = fragment; }", fragment)
    page.wait_for_selector(f"body:not([data-ready='{before}'])[data-ready]")


def status(page):
    return page.inner_text("#status")


def test_the_list_has_all_trajectories_and_only_visible_rows_are_drawn(page, run):
    _, made = run
    assert status(page) == f"{len(made)} of {len(made)}" and page.title() == "run"
    assert 5 < page.locator("#list .row").count() < len(made)


def test_a_link_opens_an_action_with_everything_that_is_recorded(page, run):
    _, made = run
    t = next(t for t in made if (t.step, t.task.id, t.sample) == (3, "t2", 1))
    first = t.actions[1]
    go(page, f"step=3&task=t2&sample=1&action={first.path}")
    card = page.inner_text("details.action.on")
    wanted = [
        "print(6*7)",
        "42",
        "You are the coder.",
        "right 2 of 4",
        "right 0.5, ends 1",
        "saw",
        "planner.00000001",
    ]
    assert not [text for text in wanted if text not in card]
    assert f"{first.score:.3f}" in card and page.locator(".graph g.on").count() == 1
    assert page.locator(".graph path").count() == sum(len(a.parents) for a in t.actions)
    page.click(".graph g >> nth=3")
    page.wait_for_selector("details.action.on >> text=reviewer.00000004")
    assert "action=reviewer.00000004" in page.url
    page.go_back()
    page.wait_for_selector(f"details.action.on >> text={first.path}")


@pytest.mark.parametrize("place", range(len(inspected_runs.HOSTILE)))
def test_hostile_texts_are_shown_and_do_nothing(page, run, place):
    _, made = run
    t = made[place]
    go(page, f"step={t.step}&task={t.task.id}&sample={t.sample}")
    text = page.locator("details.action pre").nth(2).text_content()
    assert page.title() == "run" and not any(ord(c) < 32 and c not in "\n\t" for c in text)
    assert not any(c in text for c in "\x7f\u202e\u2066") and len(text) >= min(
        9, len(inspected_runs.HOSTILE[place])
    )
    assert page.locator("#detail img, #detail script").count() == 0


def test_the_policy_of_the_page_forbids_scripts(browser, run):
    page = browser.new_page()
    page.goto(run[0].as_uri())
    page.wait_for_selector(READY)
    insert = "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')"
    assert (
        page.evaluate(
            f"() => {{ try {{ {insert}; return ''; }} catch (error) {{ return error.name; }} }}"
        )
        == "TypeError"
    )
    page.evaluate(
        "() => { const s = document.createElement('script'); s.id = 's'; document.body.append(s); }"
    )
    assert (
        page.evaluate(
            "() => { try { s.textContent = 'window.ran = 1'; } catch (error) {} return window.ran; "
            "}"
        )
        is None
    )
    page.close()
