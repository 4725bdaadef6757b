"""The page of `openrlhf inspect --html` in a real browser: what it shows, its links, keys and
colours; hostile texts stay text."""

import shutil

import inspected_runs
import pytest

from marl_plugins.cli import main
from marl_plugins.commands.inspect.shown import trajectory_values

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


def filtered(page, words):
    before = page.get_attribute("body", "data-ready")
    page.fill("#filter", words)
    page.wait_for_selector(f"body:not([data-ready='{before}'])[data-ready]")
    return status(page)


def test_the_list_has_all_trajectories_and_only_visible_rows_are_drawn(page, run):
    _, made = run
    assert status(page) == f"{len(made)} of {len(made)}" and page.title() == "run"
    assert 5 < page.locator("#list .row").count() < len(made)


def test_filters_are_those_of_the_terminal(page, run):
    _, made = run
    none = [t for t in made if t.outcome == 0]
    assert filtered(page, "outcome=0") == f"{len(none)} of {len(made)}"
    some = [
        t
        for t in made
        if any(a.role == "reviewer" and a.score >= 0.5 for a in t.actions) and t.step == 2
    ]
    assert filtered(page, "role=reviewer score=0.5: step=2") == f"{len(some)} of {len(made)}"
    found = [t for t in made if "document.title" in t.actions[0].text]
    assert filtered(page, "document.title") == f"{len(found)} of {len(made)}"
    page.fill("#filter", "roel=coder")
    page.wait_for_selector("#filter[aria-invalid=true]")
    assert "roel" in status(page)


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
    marked = [
        page.inner_text(f"details.action.on .diff {kind}").strip()
        for kind in (".plus >> nth=1", ".less >> nth=1")
    ]
    assert marked == ["+42", "-41"]  # after the lines with the names of both sides
    assert f"{first.score:.3f}" in card and page.locator(".graph g.on").count() == 1
    assert page.locator(".graph path").count() == sum(len(a.parents) for a in t.actions)
    page.click(".graph g >> nth=3")
    page.wait_for_selector("details.action.on >> text=reviewer.00000004")
    assert "action=reviewer.00000004" in page.url
    page.go_back()
    page.wait_for_selector(f"details.action.on >> text={first.path}")


def test_keys_move_open_filter_and_go_back(page):
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.get_attribute("#row2", "aria-selected") == "true"
    page.focus("#list")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail h2")
    assert "sample=2" in page.url
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail h2", state="detached")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"


def test_a_step_of_a_curve_is_a_filter(page, run):
    _, made = run
    page.click("#curves summary")
    plots = page.locator(".plot")
    assert plots.count() >= 4
    plots.first.focus()
    page.keyboard.press("ArrowLeft")
    before = page.get_attribute("body", "data-ready")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"body:not([data-ready='{before}'])[data-ready]")
    assert page.input_value("#filter") == "step=3"
    assert status(page) == f"{sum(t.step == 3 for t in made)} of {len(made)}"


def test_tokens_are_coloured_by_their_advantage(page, run):
    _, made = run
    t = next(t for t in made if (t.step, t.task.id, t.sample) == (2, "t1", 0))
    go(page, f"step=2&task=t1&sample=0&action={t.actions[0].path}")
    page.select_option("#tokens", "advantage")
    page.wait_for_selector("details.action.on .tokens span")
    spans = page.locator("details.action.on .tokens span")
    titles = [spans.nth(n).get_attribute("title") for n in range(spans.count())]
    assert [float(title.split()[1].rstrip(",")) for title in titles] == pytest.approx(
        t.actions[0].advantages, abs=6e-4
    )
    minus = [spans.nth(n).get_attribute("class") == "minus" for n in range(spans.count())]
    assert minus == [value < 0 for value in t.actions[0].advantages]
    page.select_option("#tokens", "drift")
    page.wait_for_selector("details.action.on .tokens span[title^=engine]")


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


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1600, "dark")])
def test_it_fits_small_and_large_windows(browser, run, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)
    page = context.new_page()
    page.goto(run[0].as_uri() + "#step=1&task=t1&sample=0")
    page.wait_for_selector(READY)
    page.wait_for_selector("#detail h2")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.is_visible("#back") == page.is_hidden("#list") == (width == 360)
    if width == 360:
        page.click("#back")
        page.wait_for_selector("#list", state="visible")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 300) == (scheme == "dark")
    context.close()


def test_ten_thousand_actions_in_one_trajectory_open(browser, tmp_path):
    inspected_runs.write_long_run(tmp_path, 10_000)
    assert main(["inspect", str(tmp_path), "--html", str(tmp_path / "long.html")]) == 0
    page = browser.new_page()
    page.goto((tmp_path / "long.html").as_uri() + "#step=1&task=t0&sample=0")
    page.wait_for_selector("#detail h2")
    assert (
        page.locator("details.action").count() == 10_000
        and page.locator("details.action[open]").count() == 0
    )
    page.close()


def test_a_page_without_tokenizers_says_why(browser, tmp_path):
    made = inspected_runs.write_run(tmp_path, steps=1, tasks=1, samples=1)
    assert main(["inspect", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri() + "#step=1&task=t0&sample=0")
    page.wait_for_selector("details.action")
    page.select_option("#tokens", "advantage")
    page.wait_for_selector("details.action .note")
    assert "tokenizer" in page.inner_text("details.action .note >> nth=0")
    assert trajectory_values(made[0])["actions"][0]["text"] in page.inner_text(
        "details.action >> nth=0"
    )
    page.close()


def test_two_runs_stand_side_by_side(browser, tmp_path):
    a, b = (
        inspected_runs.write_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1))
    )
    page_file = tmp_path / "both.html"
    assert (
        main(["inspect", str(tmp_path / "a"), str(tmp_path / "b"), "--html", str(page_file)]) == 0
    )
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.wait_for_selector(READY)
    better = [(x, y) for x, y in zip(a, b, strict=True) if y.outcome > x.outcome]
    assert filtered(page, "change=better") == f"{len(better)} of {len(a)}"
    x, y = better[0]
    go(page, f"step={x.step}&task={x.task.id}&sample={x.sample}")
    columns = page.locator(".sides > div")
    assert columns.count() == 2 and page.locator(".graph").count() == 2
    for column, t in zip((columns.nth(0), columns.nth(1)), (x, y), strict=True):
        assert (
            t.actions[-1].text in column.inner_text() and f"{t.outcome:.3f}" in column.inner_text()
        )
    page.click("#curves summary")
    assert "A coder" in page.inner_text("#panels") and "B coder" in page.inner_text("#panels")
    page.close()
