"""A simulated reviewer: answers the questions of `spml review` from the true labels, in the order of the page."""

from spml import Run
from spml.review.app import open_decisions
from spml.review.session import Review
from spml.runs.decisions import Question


def answer_questions(run: Run, truth: dict[str, list[str]], count: int, at_once: int = 20) -> int:
    """Answer `count` questions, always about the label for which answers help most; return how many were yes."""
    yes = 0
    with open_decisions(run.folder) as decisions:
        review = Review(run.folder, run.recover(), decisions)
        for asked in range(0, count, at_once):
            gain = review.overview()["gain"]
            label = gain.index(max(gain))
            rows = review.by_label(label, "suggested", "open")["rows"][:at_once]
            answers = [
                Question(row, label, 1 if run.classes[label] in truth[run.folder.names[row]] else -1) for row in rows
            ]
            review.answer(answers, who="simulated", request=str(asked))
            yes += sum(question.answer == 1 for question in answers)
    return yes
