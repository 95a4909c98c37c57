"""Scores kept in a file, and shown side by side."""

import json

import pytest

from ragen_jax.evaluation.results import Results, Score, score_table

ABOUT = {
    "policy": "runs/x at iteration 3",
    "evaluation": {"num_prompts": 8, "pass_at": (1, 2), "temperature": 0.5},
}


def score(name, success=0.5, ks=(1, 4), **played):
    names = ["success", *(f"pass@{k}" for k in ks)]
    metrics = {"ceiling": 0.9, "regret": 0.4}
    for metric in names:
        metrics |= {metric: success, f"{metric}_low": 0.25, f"{metric}_high": 0.75}
    return Score(name, {"rows": 6, **played}, "What | it asks.", metrics, 1.5)


def test_scores_are_taken_over(tmp_path):
    path = tmp_path / "new/scores.json"
    results = Results(ABOUT, path)
    results.add(score("Walk", symbols=("a", "b")))
    results.add(score("Run"))
    again = Results(ABOUT, path)
    assert [known.name for known in again.scores] == ["Walk", "Run"]
    found = again.find("Walk", {"rows": 6, "symbols": ("a", "b")})
    assert found.metrics == results.scores[0].metrics
    assert again.find("Swim", {}) is None
    assert again.markdown() == results.markdown()
    again.add(score("Walk", success=0.25))
    assert [known.name for known in Results(ABOUT, path).scores] == ["Walk", "Run"]


def test_other_scores_are_refused(tmp_path):
    path = tmp_path / "scores.json"
    results = Results(ABOUT, path)
    results.add(score("Walk"))
    with pytest.raises(ValueError, match="Walk: rows: 6 there, 8 here"):
        results.find("Walk", {"rows": 8})
    with pytest.raises(ValueError, match=r"policy: 'runs/x .*' there, 'other' here"):
        Results(ABOUT | {"policy": "other"}, path)
    (good,) = json.loads(path.read_text())["scores"]
    rows = [{"a": 1}, 3, *(good | {name: [1]} for name in good)]
    rows.append(good | {"metrics": {"success": 1.0}})
    rows.append(good | {"metrics": good["metrics"] | {"regret": "x"}})
    wrong = [json.dumps({"about": {}, "scores": [row]}) for row in rows]
    for text in ("{", "[]", "[" * 9_999, '{"about": {}}', *wrong):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a file of scores"):
            Results(ABOUT, path)


def test_a_file_is_continued_by_another_version(tmp_path):
    path = tmp_path / "scores.json"
    Results(ABOUT, path, {"jax": "1"}).add(score("Walk"))
    Results(ABOUT, path, {"jax": "2"}).add(score("Run"))
    found = Results(ABOUT, path).scores
    assert [known.made for known in found] == [{"jax": "1"}, {"jax": "2"}]
    content = json.loads(path.read_text())
    for row in content["scores"]:
        # As versions wrote it that did not record these.
        del row["wins"], row["made"]
    path.write_text(json.dumps(content))
    old = Results(ABOUT, path, {"jax": "3"})
    assert [(known.wins, known.made) for known in old.scores] == [(None, None)] * 2
    old.add(score("Swim"))
    assert Results(ABOUT, path).find("Swim", {"rows": 6}).made == {"jax": "3"}


def test_the_table():
    assert score_table([score("Walk"), score("Run")]).splitlines() == [
        "| game | success | best possible | regret | pass@1 | pass@4 | note |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| Walk | 50.0% (25.0% to 75.0%) | 90.0% | 40.0% | 50.0% (25.0% to 75.0%) | "
        "50.0% (25.0% to 75.0%) | What \\| it asks. |",
        "| Run | 50.0% (25.0% to 75.0%) | 90.0% | 40.0% | 50.0% (25.0% to 75.0%) | "
        "50.0% (25.0% to 75.0%) | What \\| it asks. |",
    ]
    far = score("Far")
    far.metrics["ceiling"] = 0.1
    said = "| What \\| it asks. **Not informative: within these limits"
    assert said in score_table([far]).splitlines()[-1]
    unknown = score("Unknown")
    del unknown.metrics["ceiling"], unknown.metrics["regret"]
    cells = score_table([unknown]).splitlines()[-1].split(" | ")
    assert cells[2:4] == ["unknown", "unknown"]
    assert "Not informative" not in cells[-1]
    results = Results(ABOUT, None)
    results.add(score("Walk"))
    heading = "**runs/x at iteration 3** (num_prompts 8, temperature 0.5)."
    assert results.markdown().startswith(heading)
