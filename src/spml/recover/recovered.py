"""The result of a recovery: all labels of a run's rows, observed and recovered, each with a confidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from spml.calibration import Bool, Calibration, Float32, Float64, Int8, Int64, Reading
from spml.errors import InputError
from spml.labels import Labels
from spml.labels.entries import row_blocks
from spml.labels.inputs import row_indices
from spml.recover.messages import Counts, describe_expectation, describe_labels
from spml.recover.rule import Expectation, Rule

PROVENANCE = ("recovered", "given", "confirmed", "labelled")
"""Where a label comes from: the model, the data, a person's answer, or a fully labelled row."""


class LabelTable(NamedTuple):
    """One line per label, sorted by row; within a row known labels come first, then the most confident."""

    row: Int64
    """Row number in the data."""
    label: Int64
    """Class index."""
    observed: Bool
    """Whether the label was in the data."""
    confidence: Float32
    """1 for known labels."""
    probability: Float32
    """Prediction of the network, before calibration."""
    threshold: Float64
    """Threshold on the confidence."""
    rank: Int64
    """Rank of the row among all rows by the probability of this class; 1 is the most probable."""
    provenance: Int8
    """Index into `PROVENANCE`; a given label that a person confirmed is "confirmed"."""

    def __repr__(self) -> str:
        return f"LabelTable({len(self.row):,} labels, {int((self.provenance == 0).sum()):,} of them recovered)"


@dataclass(frozen=True, eq=False)
class Recovered:
    """The labels of a run's rows: those that were observed and those that were recovered.

    Attributes
    ----------
    run : str
        Name of the run.
    names : list of str
        Name of each row of the data.
    classes : tuple of str
    rows : array of shape (n_rows,)
        The rows whose labels were recovered, ascending.
    known : array of shape (N, L)
        Known labels of every row, by the data or by people: +1 positive, −1 negative, 0 unknown.
    probabilities : array of shape (N, L)
        Predictions of the network; NaN for rows without predictions.
    independent : array of shape (N, L)
        The input of the calibration, see `RunFolder.independent`.
    confidences : array of shape (N, L)
        P(present | image, observed labels of the row) in the reading of the rule, by default the cautious one; NaN
        where `probabilities` are.
    rule : Rule
        From which confidence on an unknown label counts as present.
    calibration : Calibration
    calibrated_on : str
        A sentence that describes the rows used for calibration and the estimated number of labels per row.
    notes : tuple of str
        Warnings, which `spml recover` prints after the summary.
    given : Labels
        The labels that were in the data.
    decided : array of shape (N, L), optional
        Answers of people, if any: +1 yes, −1 no, 0 not answered. `known` includes them.

    Examples
    --------
    >>> import spml, tempfile
    >>> out = tempfile.TemporaryDirectory()
    >>> run = spml.train("scenes", out=out.name, train=60, test=20, model="small", epochs=1, progress=False)
    >>> recovered = run.recover()
    >>> recovered.present([0, 1]).shape, recovered.confidence([0, 1]).shape
    ((2, 10), (2, 10))
    >>> len(recovered.names)
    80
    """

    run: str
    names: list[str]
    classes: tuple[str, ...]
    rows: Int64
    known: Int8
    probabilities: Float32
    independent: Float32
    confidences: Float32
    rule: Rule
    calibration: Calibration
    calibrated_on: str
    notes: tuple[str, ...]
    given: Labels
    decided: Int8 | None = None

    def __repr__(self) -> str:
        return f"Recovered({self.run!r}: {len(self.rows)} rows, {len(self.classes)} classes)"

    @property
    def thresholds(self) -> Float64:
        """The confidence from which on a label of each class counts as present, (L,)."""
        return self.rule.thresholds

    def confidence(self, rows: Any) -> Float32:
        """Confidences of some rows.

        Parameters
        ----------
        rows : array of int
            Row numbers of the data.

        Returns
        -------
        ndarray of shape (R, L), float32
            P(present | image, observed labels of the row), in the order of `classes`.
        """
        return self.confidences[row_indices(rows, len(self.names))]

    def present(self, rows: Any) -> Bool:
        """Whether each label of some rows is observed or recovered.

        Parameters
        ----------
        rows : array of int
            Row numbers of the data.

        Returns
        -------
        ndarray of shape (R, L), bool
        """
        index = row_indices(rows, len(self.names))
        return self.rule.present(self.confidences[index], self.known[index])

    @cached_property
    def entries(self) -> LabelTable:
        """The labels of `rows` as a table."""
        blocks = list(row_blocks(len(self.rows), len(self.classes)))
        present = [np.nonzero(self.present(self.rows[block])) for block in blocks]
        position = np.concatenate([block.start + rows for block, (rows, _) in zip(blocks, present, strict=True)])
        label = np.concatenate([labels for _, labels in present])
        row = self.rows[position]
        order = np.lexsort((-self.confidences[row, label], self.known[row, label] <= 0, row))
        position, row, label = position[order], row[order], label[order]
        return LabelTable(
            row=row,
            label=label,
            observed=self._in_data(row, label),
            confidence=self.confidences[row, label],
            probability=self.probabilities[row, label],
            threshold=self.thresholds[label],
            rank=self._ranks(position, label),
            provenance=self._provenance(row, label),
        )

    def _in_data(self, row: Int64, label: Int64) -> Bool:
        rows, labels = self.given.positives()
        return np.isin(row * len(self.classes) + label, rows * len(self.classes) + labels)

    def _provenance(self, row: Int64, label: Int64) -> Int8:
        provenance = np.where(self.known[row, label] > 0, PROVENANCE.index("labelled"), 0).astype(np.int8)
        provenance[self._in_data(row, label)] = PROVENANCE.index("given")
        if self.decided is not None:
            provenance[self.decided[row, label] > 0] = PROVENANCE.index("confirmed")
        return provenance

    def _ranks(self, position: Int64, label: Int64) -> Int64:
        """Rank of each (position in `rows`, class) by the probability of the class; ties are broken by row."""
        rank, rank_of_row = np.empty(len(position), np.int64), np.empty(len(self.rows), np.int64)
        by_class = np.argsort(label, kind="stable")
        ends = np.searchsorted(label[by_class], np.arange(len(self.classes)), side="right")
        for c, chosen in enumerate(np.split(by_class, ends[:-1])):
            if len(chosen):
                order = np.argsort(-self.probabilities[self.rows, c], kind="stable")
                rank_of_row[order] = np.arange(1, len(order) + 1)
                rank[chosen] = rank_of_row[position[chosen]]
        return rank

    def to_pandas(self) -> Any:
        """Return the labels of `rows` as a data frame with the columns of the file that `spml recover` writes.

        Returns
        -------
        pandas.DataFrame
            One line per label.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        from spml.recover.exports import as_table

        try:
            import pandas  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            raise InputError("to_pandas needs the package pandas: pip install pandas") from None
        return as_table(self).to_pandas()

    @cached_property
    def expected(self) -> Expectation:
        """Expected precision and recall of the recovered labels: the 10th and the 90th percentile of each."""
        recovered_rows = self.entries.row[self.entries.provenance == PROVENANCE.index("recovered")]
        count = len(recovered_rows)
        correct: dict[Reading, float] = {"lowest": 0.0, "highest": 0.0}
        rows = np.unique(recovered_rows)
        for part in row_blocks(len(rows), len(self.classes)):
            block, known = rows[part], self.known[rows[part]]
            recovered = self.present(block) & (known == 0)
            for reading in correct:
                values = self.calibration.confidences(self.independent[block], known, reading=reading)
                correct[reading] += float(values[recovered].sum(dtype=np.float64))
        low, high = (correct[reading] / max(count, 1) for reading in ("lowest", "highest"))
        observed = int((self.known[self.rows] > 0).sum())
        k = self.calibration.k
        fewest, most = (max(value * len(self.rows) - observed, 0.0) for value in (k.low, k.high))
        recall = tuple(
            min(share * count / missing, 1.0) if missing > 0 else 1.0
            for share, missing in ((low, most), (high, fewest))
        )
        return Expectation((low, high), (min(recall), max(recall)))

    def summary(self) -> str:
        """Describe what was recovered, what to expect of it, and how the confidences were calibrated.

        Warnings are in `notes`.

        Returns
        -------
        str
        """
        counts = self._counts()
        expected = [describe_expectation(counts.recovered, self.expected)] if counts.recovered else []
        return " ".join([describe_labels(counts, len(self.rows)), *expected, self.calibrated_on])

    def _counts(self) -> Counts:
        numbers = np.bincount(self.entries.provenance, minlength=len(PROVENANCE)).tolist()
        denied = 0 if self.decided is None else int((self.decided[self.rows] < 0).sum())
        return Counts(**dict(zip(PROVENANCE, numbers, strict=True)), denied=denied)
