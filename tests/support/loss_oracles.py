"""Independent oracles of the losses: the papers' formulas, entry by entry in float64, without code of the package.

Labels are +1 positive, -1 verified negative, 0 unknown. The papers have verified negatives only in fully labelled data;
where an oracle accepts them, its docstring states their cost.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]
Labels = NDArray[np.int64]


def log_p(g: float) -> float:
    """log p, with p = 1 / (1 + e^-g)."""
    return float(-np.logaddexp(0.0, -g))


def log_not_p(g: float) -> float:
    """log(1 - p)."""
    return float(-np.logaddexp(0.0, g))


def p(g: float) -> float:
    return math.exp(log_p(g))


def not_p(g: float) -> float:
    return math.exp(log_not_p(g))


def every_entry(logits: Table, labels: Labels, cost: Callable[[float, int], float]) -> Table:
    """cost(g, y) at every entry."""
    result = np.zeros_like(logits)
    for n in range(logits.shape[0]):
        for i in range(logits.shape[1]):
            result[n, i] = cost(float(logits[n, i]), int(labels[n, i]))
    return result


def cross_entropy(g: float, y: int) -> float:
    return -log_p(g) if y == 1 else -log_not_p(g)


# Cole et al. 2021


def iu(logits: Table, labels: Labels) -> Table:
    """Eq. 6: -1[z=1] log f - 1[z=0] log(1 - f); the same formula is Eq. 5 (BCE) and Eq. 7 (IUN)."""
    return every_entry(logits, labels, lambda g, y: -(y == 1) * log_p(g) - (y == -1) * log_not_p(g))


def bce_ls(logits: Table, labels: Labels, smoothing: float = 0.1) -> Table:
    """Eq. 5 with the smoothed indicators 1^(ε/2) of Eq. 9; nothing for unknown labels."""

    def cost(g: float, y: int) -> float:
        if y == 0:
            return 0.0
        present = (1 - smoothing / 2) * (y == 1) + smoothing / 2 * (y != 1)
        absent = (1 - smoothing / 2) * (y != 1) + smoothing / 2 * (y == 1)
        return -present * log_p(g) - absent * log_not_p(g)

    return every_entry(logits, labels, cost)


def softmax(logits: Table, labels: Labels) -> Table:
    """Per row: cross-entropy of softmax(g) against the uniform distribution over the positives; 0 without any."""
    rows = []
    for g, y in zip(logits, labels, strict=True):
        total = float(np.logaddexp.reduce(g))
        positives = [i for i in range(len(y)) if y[i] == 1]
        rows.append(sum(total - float(g[i]) for i in positives) / len(positives) if positives else 0.0)
    return np.array(rows)


def an(logits: Table, labels: Labels) -> Table:
    """Eq. 8: -1[z=1] log f - 1[z≠1] log(1 - f)."""
    return every_entry(logits, labels, cross_entropy)


def an_ls(logits: Table, labels: Labels, positive_smoothing: float = 0.1, negative_smoothing: float = 0.1) -> Table:
    """Appendix A: -1[z=1]^(ε_p/2, ε_n/2) log f - 1[z≠1]^(ε_n/2, ε_p/2) log(1 - f); Eq. 9 where both are ε."""
    half_p, half_n = positive_smoothing / 2, negative_smoothing / 2

    def cost(g: float, y: int) -> float:
        present = (1 - half_p) * (y == 1) + half_n * (y != 1)
        absent = (1 - half_n) * (y != 1) + half_p * (y == 1)
        return -present * log_p(g) - absent * log_not_p(g)

    return every_entry(logits, labels, cost)


def wan(logits: Table, labels: Labels, negative_weight: float | None = None) -> Table:
    """Sec. 5.1: -1[z=1] log f - γ 1[z≠1] log(1 - f), γ = 1/(L - 1); a verified negative keeps its weight."""
    if negative_weight is None:
        negative_weight = 1.0 if logits.shape[1] == 1 else 1 / (logits.shape[1] - 1)
    return every_entry(logits, labels, lambda g, y: cross_entropy(g, y) * (negative_weight if y == 0 else 1.0))


def iun(logits: Table, labels: Labels, positives_only: bool = False) -> Table:
    """Eq. 7; as the authors' code runs it, without its negative term."""
    costs = iu(logits, labels)
    return np.where(labels == 1, costs, 0.0) if positives_only else costs


def pr(logits: Table, labels: Labels, divide_by_classes: bool = False) -> Table:
    """Appendix A, one value per row: Σ_ij 1[z_i=1, z_j≠1] max(0, 1 - f_i + f_j); the authors' code divides by L."""
    result = np.zeros(len(logits))
    for n, (row, known) in enumerate(zip(logits, labels, strict=True)):
        for i in range(len(row)):
            for j in range(len(row)):
                if known[i] == 1 and known[j] != 1:
                    result[n] += max(0.0, not_p(row[i]) + p(row[j]))
    return result / logits.shape[1] if divide_by_classes else result


def epr(logits: Table, labels: Labels, k: float, weight: float = 1.0, divide_by_classes: bool = False) -> Table:
    """Sec. 5.3, one value per batch: (1/|B|) Σ_n L+ + λ ((k̂ - k)/L)². A verified negative adds -log(1 - f) to L+."""
    rows, classes = logits.shape
    known, predicted = 0.0, 0.0
    for n in range(rows):
        for i in range(classes):
            predicted += p(logits[n, i])
            if labels[n, i] != 0:
                known += cross_entropy(logits[n, i], labels[n, i])
    known /= rows * (classes if divide_by_classes else 1)
    return np.array(known + weight * ((predicted / rows - k) / classes) ** 2)


# Zhou et al. 2022


def entropy(g: float) -> float:
    """Eq. 4. Written as Σ of two positive terms, so that nothing cancels."""
    return -p(g) * log_p(g) - not_p(g) * log_not_p(g)


def em(logits: Table, labels: Labels, entropy_weight: float = 0.2) -> Table:
    """Eq. 3: -1[y=1] log f - 1[y=0] α H(f); a verified negative costs -log(1 - f)."""
    return every_entry(logits, labels, lambda g, y: -entropy_weight * entropy(g) if y == 0 else cross_entropy(g, y))


def em_gradient(g: float, entropy_weight: float) -> float:
    """Eq. 5, unannotated labels: -α e^-g log(e^-g) / (1 + e^-g)², multiplied out by e^g where e^-g overflows."""
    tail = math.exp(-abs(g))
    return entropy_weight * g * tail / (1 + tail) ** 2


def em_apl(
    logits: Table,
    labels: Labels,
    soft_labels: Table,
    entropy_weight: float = 0.2,
    soft_weight: float = 0.02,
) -> Table:
    """Eq. 8 with L* of Eq. 7; `soft_labels` is NaN where no pseudo-label was given."""
    result = em(logits, labels, entropy_weight)
    for n in range(logits.shape[0]):
        for i in range(logits.shape[1]):
            s = float(soft_labels[n, i])
            if labels[n, i] == 0 and not math.isnan(s):
                g = float(logits[n, i])
                result[n, i] = -soft_weight * (s * log_p(g) + (1 - s) * log_not_p(g))
    return result


def entmin(logits: Table, labels: Labels, entropy_weight: float = 0.01) -> Table:
    """Appendix C.2: entropy minimised where EM maximises it."""
    return every_entry(logits, labels, lambda g, y: entropy_weight * entropy(g) if y == 0 else cross_entropy(g, y))


def dw(logits: Table, labels: Labels, negative_weight: float = 0.1) -> Table:
    """Appendix C: L- of Eq. 1 times a constant, for assumed negatives only."""
    return wan(logits, labels, negative_weight)


def n_ls(logits: Table, labels: Labels, smoothing: float = 0.3) -> Table:
    """Appendix C: label smoothing of the assumed negatives; known labels stay hard."""
    half = smoothing / 2
    return every_entry(
        logits,
        labels,
        lambda g, y: -half * log_p(g) - (1 - half) * log_not_p(g) if y == 0 else cross_entropy(g, y),
    )


def l1r(logits: Table, labels: Labels, parameters: Sequence[Table], weight: float = 1e-6) -> Table:
    """Appendix C, one value per batch: the mean of AN plus w Σ|θ|."""
    norm = sum(abs(float(value)) for parameter in parameters for value in parameter.ravel())
    return np.array(an(logits, labels).mean() + weight * norm)


def l2r(logits: Table, labels: Labels, parameters: Sequence[Table], weight: float = 1e-6) -> Table:
    """Appendix C, one value per batch: the mean of AN plus w Σθ²."""
    norm = sum(float(value) ** 2 for parameter in parameters for value in parameter.ravel())
    return np.array(an(logits, labels).mean() + weight * norm)


# Lin et al. 2017, Ridnik et al. 2021 and the LASD paper


def focal_positive(g: float, focusing: float) -> float:
    """LASD Eq. 4: L_γ+ = -(1 - f)^γ log f."""
    return -(not_p(g) ** focusing) * log_p(g)


def focal_negative(g: float, focusing: float) -> float:
    """LASD Eq. 4: L_γ- = -f^γ log(1 - f)."""
    return -(p(g) ** focusing) * log_not_p(g)


def focal(logits: Table, labels: Labels, focusing: float = 2.0, balance: float | None = None) -> Table:
    """LASD A.2.2, L_FAN; Lin et al.'s α is the weight of positives, 1 - α of the rest."""

    def cost(g: float, y: int) -> float:
        if y == 1:
            return focal_positive(g, focusing) * (1.0 if balance is None else balance)
        return focal_negative(g, focusing) * (1.0 if balance is None else 1 - balance)

    return every_entry(logits, labels, cost)


def asl(
    logits: Table,
    labels: Labels,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
    shift: float = 0.05,
    detach_weight: bool = False,
) -> Table:
    """LASD A.2.2, L_ASL-PS: p_m = max(f - m, 0). Detaching changes the gradient, not the value."""

    def cost(g: float, y: int) -> float:
        if y == 1:
            return focal_positive(g, positive_focusing)
        if shift == 0:
            return focal_negative(g, negative_focusing)
        shifted = max(p(g) - shift, 0.0)
        return -(shifted**negative_focusing) * math.log1p(-shifted)

    return every_entry(logits, labels, cost)


def lasd(
    logits: Table,
    labels: Labels,
    positive_leverage: float = 0.1,
    negative_leverage: float | None = None,
    k: float | None = None,
    threshold: float = 0.9,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Table:
    """Eq. 6, λ- from Theorem 5.4 with k = 1 by default; a verified negative costs its full L_γ-."""
    classes = logits.shape[1]
    if negative_leverage is None:
        expected = 1.0 if k is None else k
        negative_leverage = 1.0 if classes == 1 else (1 + positive_leverage * (expected - 1)) / (classes - expected)

    def cost(g: float, y: int) -> float:
        if y == 1:
            return focal_positive(g, positive_focusing)
        if y == -1:
            return focal_negative(g, negative_focusing)
        if p(g) > threshold:
            return positive_leverage * focal_positive(g, positive_focusing)
        return negative_leverage * focal_negative(g, negative_focusing)

    return every_entry(logits, labels, cost)


def las(
    logits: Table,
    labels: Labels,
    leverage: float = 0.05,
    positive_focusing: float = 0.0,
    negative_focusing: float = 4.0,
) -> Table:
    """Eq. 5."""

    def cost(g: float, y: int) -> float:
        if y == 1:
            return focal_positive(g, positive_focusing)
        return focal_negative(g, negative_focusing) * (leverage if y == 0 else 1.0)

    return every_entry(logits, labels, cost)


def lasd_full(
    row: Table,
    present: Sequence[bool],
    positive_leverage: float,
    negative_leverage: float,
    positive_focusing: float,
    negative_focusing: float,
) -> float:
    """Theorem 5.3, Eq. 11, of one fully labelled row."""
    size = sum(present)
    positives = sum(focal_positive(g, positive_focusing) for g, y in zip(row, present, strict=True) if y)
    negatives = sum(focal_negative(g, negative_focusing) for g, y in zip(row, present, strict=True) if not y)
    return (1 / size + positive_leverage * (1 - 1 / size)) * positives + negative_leverage * negatives


# Kim et al. 2022


def suspects(logits: Table, labels: Labels, epoch: int, share: float) -> set[tuple[int, int]]:
    """The ⌈B·L·(t - 1)·Δ/100⌉ unknown entries of the batch with the largest AN loss."""
    count = math.ceil(Fraction(logits.size * (epoch - 1)) * Fraction(str(share)) / 100)
    cost = an(logits, labels)
    unknown = [(n, i) for n, i in np.ndindex(*logits.shape) if labels[n, i] == 0]
    unknown.sort(key=lambda where: -cost[where])
    return set(unknown[:count])


def ll_r(logits: Table, labels: Labels, epoch: int, share: float = 0.2) -> Table:
    """AN without the suspected entries."""
    result = an(logits, labels)
    for where in suspects(logits, labels, epoch, share):
        result[where] = 0.0
    return result


def ll_ct(logits: Table, labels: Labels, epoch: int, share: float = 0.2) -> Table:
    """AN with the suspected entries as positives."""
    result = an(logits, labels)
    for where in suspects(logits, labels, epoch, share):
        result[where] = -log_p(logits[where])
    return result


# Zhang et al. 2021, Chen et al. 2024


def splc(
    logits: Table,
    labels: Labels,
    epoch: int = 2,
    threshold: float = 0.6,
    margin: float = 1.0,
    positive_focusing: float = 2.0,
    negative_focusing: float = 2.0,
    first_epoch: int = 2,
) -> Table:
    """Focal loss with observed positives shifted by the margin; from the second epoch p > τ makes a positive."""

    def cost(g: float, y: int) -> float:
        if y == 1:
            return focal_positive(g - margin, positive_focusing)
        if y == 0 and epoch >= first_epoch and p(g) > threshold:
            return focal_positive(g, positive_focusing)
        return focal_negative(g, negative_focusing)

    return every_entry(logits, labels, cost)


def hill(
    logits: Table,
    labels: Labels,
    crest: float = 1.5,
    margin: float = 1.0,
    positive_focusing: float = 2.0,
) -> Table:
    """Positives as SPLC's; the others (λ - p) p²."""

    def cost(g: float, y: int) -> float:
        return focal_positive(g - margin, positive_focusing) if y == 1 else (crest - p(g)) * p(g) ** 2

    return every_entry(logits, labels, cost)


Schedule = tuple[float, float, float, float]
GR_START: Schedule = (0.0, -2.0, 0.5, 2.0)
GR_END: Schedule = (2.0, -2.0, 0.8, 0.5)


def gr_at(t: int, epochs: int, start: Schedule = GR_START, end: Schedule = GR_END) -> Schedule:
    """(w, b, μ, σ) in epoch t of T: w and b have moved by (t - 1)/T, μ and σ by t/T."""
    shares = ((t - 1) / epochs, (t - 1) / epochs, t / epochs, t / epochs)
    w, b, mu, sigma = ((1 - share) * a + share * z for share, a, z in zip(shares, start, end, strict=True))
    return w, b, mu, sigma


def gr_belief_and_weight(g: float, now: Schedule) -> tuple[float, float]:
    """K = σ(w p + b) and V = exp(-(p - μ)² / 2σ²)."""
    w, b, mu, sigma = now
    return p(w * p(g) + b), math.exp(-((p(g) - mu) ** 2) / (2 * sigma**2))


def box_cox(log_probability: float, power: float) -> float:
    """(1 - p^q) / q."""
    return -math.expm1(power * log_probability) / power


def gr(
    logits: Table,
    labels: Labels,
    epoch: int = 1,
    epochs: int = 1,
    positive_power: float = 0.01,
    negative_power: float = 1.0,
    start: Schedule = GR_START,
    end: Schedule = GR_END,
) -> Table:
    """V [K (1 - p^q2)/q2 + (1 - K)(1 - (1 - p)^q3)/q3] on unknown labels; verified negatives their own term."""
    now = gr_at(epoch, epochs, start, end)

    def cost(g: float, y: int) -> float:
        if y == 1:
            return -log_p(g)
        as_negative = box_cox(log_not_p(g), negative_power)
        if y == -1:
            return as_negative
        belief, weight = gr_belief_and_weight(g, now)
        return weight * (belief * box_cox(log_p(g), positive_power) + (1 - belief) * as_negative)

    return every_entry(logits, labels, cost)


# Xie et al. 2022


def plc(
    logits: Table,
    labels: Labels,
    weak_logits: Table,
    threshold: float = 0.6,
    include_observed: bool = False,
) -> Table:
    """Eq. 4 on unknown labels; `include_observed` adds the known ones at their own sign."""
    result = np.zeros_like(logits)
    for n, i in np.ndindex(*logits.shape):
        g, y, sure = float(logits[n, i]), int(labels[n, i]), p(float(weak_logits[n, i]))
        if y == 0:
            result[n, i] = -(sure >= threshold) * log_p(g) - (sure <= 1 - threshold) * log_not_p(g)
        elif include_observed:
            result[n, i] = cross_entropy(g, y)
    return result


def lac(
    anchors: Table,
    keys: Table,
    weak: Table,
    threshold: float,
    temperature: float,
    queue: tuple[Table, Labels, Table] | None = None,
) -> float:
    """Eq. 7 over all B = b·q embeddings with the matrices I (Eq. 5) and Ī (Eq. 6) written out.

    `anchors` and `keys` (b, q, d) are the two views' embeddings, `weak` (b, q) the pseudo-labels p^w, `queue` the
    embeddings, classes and pseudo-labels remembered. An anchor whose denominator is empty costs nothing.
    """
    rows, classes, width = anchors.shape
    z, other_view = anchors.reshape(-1, width), keys.reshape(-1, width)
    class_of = [k % classes for k in range(rows * classes)]
    label_of = list(weak.ravel())
    key_class, key_label = list(class_of), list(label_of)
    if queue is not None:
        other_view = np.concatenate([other_view, queue[0]])
        key_class += list(queue[1])
        key_label += list(queue[2])
    total = len(z)
    intra = np.zeros((total, len(other_view)))
    inter = np.zeros((total, len(other_view)))
    for a in range(total):
        for b in range(len(other_view)):
            if label_of[a] >= threshold and key_label[b] >= threshold:
                intra[a, b] = class_of[a] == key_class[b]
                inter[a, b] = class_of[a] != key_class[b]
    result = 0.0
    for a in range(total):
        if not inter[a].any():
            continue
        below = sum(inter[a, t] * math.exp(float(z[a] @ other_view[t]) / temperature) for t in range(len(other_view)))
        for b in range(len(other_view)):
            above = math.exp(float(z[a] @ other_view[b]) / temperature)
            result -= intra[a, b] * math.log(above / below)
    return result / total


def annotator_choice(logits: Table, labels: Labels) -> Table:
    """-log P(observed) per row, from the distribution of the number of unknown labels present, built label by label."""
    costs = []
    for row, known in zip(logits, labels, strict=True):
        cost = -sum(log_p(g) for g, y in zip(row, known, strict=True) if y > 0)
        cost -= sum(log_not_p(g) for g, y in zip(row, known, strict=True) if y < 0)
        named = int((known > 0).sum())
        if named:
            chances = [1.0]  # of 0, 1, 2, … unknown labels present
            for g in row[known == 0]:
                there, absent = p(g), not_p(g)
                longer = [0.0] * (len(chances) + 1)
                for count, chance in enumerate(chances):
                    longer[count] += chance * absent
                    longer[count + 1] += chance * there
                chances = longer
            cost -= math.log(sum(chance * named / (named + count) for count, chance in enumerate(chances)))
        costs.append(cost)
    return np.array(costs)
