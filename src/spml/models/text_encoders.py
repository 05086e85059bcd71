"""From texts to features: TF-IDF, a static embedding, or any model of sentence-transformers.

An encoder is fitted on the training texts without their labels. It is saved as plain values (its record) and tensors,
and loaded without pickle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spml.errors import InputError, install_command

Float32 = npt.NDArray[np.float32]
Segments = list[tuple[str, float]]

DEFAULT_ENCODER = "tfidf"
_TFIDF = {"words": ("words",), "chars": ("chars",), "words+chars": ("words", "chars")}
_FEW_TEXTS = 50  # below, terms that occur in one text are kept
_MOST_CHARACTERS = 30_000_000  # of all texts: above, character n-grams take minutes, and words suffice
_LONG_WORD = 12  # characters: longer words on average mean that the script has no blanks between words
_SAMPLE = 1000  # texts that are inspected
_VECTORISERS: dict[str, dict[str, Any]] = {
    "words": {"analyzer": "word", "ngram_range": (1, 2)},
    "chars": {"analyzer": "char_wb", "ngram_range": (3, 5)},
    "characters": {"analyzer": "char", "ngram_range": (1, 3)},
}
_MOST_TERMS = 100_000
_MOST_SHARED = {"words": 10_000, "chars": 20_000}  # where both are used; more terms cost time and gained nothing


class TextEncoder(Protocol):
    """Turns texts into feature rows."""

    @property
    def record(self) -> dict[str, Any]:
        """What `encoder_from_record` needs besides `tensors`, as JSON."""
        ...

    @property
    def description(self) -> str:
        """In words, for the user."""
        ...

    def tensors(self) -> dict[str, Tensor]: ...
    def encode(self, texts: Sequence[str]) -> Any:
        """Features of shape (N, D): a scipy CSR matrix or a float32 array."""
        ...


def fit_encoder(name: str, texts: Sequence[str]) -> TextEncoder:
    """Fit an encoder on the training texts.

    Parameters
    ----------
    name : str
        "tfidf": TF-IDF of word 1–2-grams and of character 3–5-grams within words; only of words for more than 30
        million characters, and of character 1–3-grams if words are not separated by blanks. "words", "chars" and
        "words+chars" choose explicitly. "wordllama": mean of static word embeddings. Anything else is the name of a
        model of sentence-transformers.
    texts : sequence of str

    Returns
    -------
    TextEncoder

    Raises
    ------
    InputError
        If a package is missing, the model cannot be loaded, or the texts contain nothing to learn from.

    Examples
    --------
    >>> encoder = fit_encoder("words", ["red apple", "green apple", "green pear"])
    >>> encoder.encode(["a red pear"]).shape
    (1, 7)
    >>> encoder.description
    'TF-IDF of 7 words and word pairs'
    """
    if name == DEFAULT_ENCODER or name in _TFIDF:
        return TfidfEncoder.fit(_TFIDF.get(name) or _suitable(texts), texts)
    return encoder_from_record({"kind": "wordllama"} if name == "wordllama" else _sentence_record(name), {})


def check_encoder(name: str) -> None:
    """Raise `InputError` if an encoder needs a package that is not installed; no model is loaded."""
    if name == DEFAULT_ENCODER or name in _TFIDF:
        return
    if name == "wordllama":
        if find_spec("wordllama") is None:
            raise InputError(f"the encoder wordllama needs the package wordllama: {install_command('text')}")
    elif find_spec("sentence_transformers") is None:
        known = ", ".join((DEFAULT_ENCODER, *_TFIDF, "wordllama"))
        raise InputError(
            f"the encoder {name!r} is none of {known}, and models of sentence-transformers need that package: "
            "pip install sentence-transformers"
        )


def encoder_from_record(record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TextEncoder:
    """Load an encoder from its record and its tensors."""
    kinds = {"tfidf": TfidfEncoder, "wordllama": StaticEncoder, "sentence-transformers": SentenceEncoder}
    if record.get("kind") not in kinds:
        raise InputError(f"the text encoder {record.get('kind')!r} is unknown to this version of spml")
    if record["kind"] == "tfidf":
        return TfidfEncoder.load(record, tensors)
    if record["kind"] == "wordllama":
        return StaticEncoder()
    return SentenceEncoder(record["model"])


def _suitable(texts: Sequence[str]) -> tuple[str, ...]:
    """Choose the kinds of terms for these texts."""
    words = re.findall(r"\w+", " ".join(texts[:: max(1, len(texts) // _SAMPLE)]))
    if words and sum(map(len, words)) > _LONG_WORD * len(words):
        return ("characters",)
    return ("words",) if sum(map(len, texts)) > _MOST_CHARACTERS else ("words", "chars")


class TfidfEncoder:
    """TF-IDF of several kinds of terms side by side, with sublinear term frequencies; see scikit-learn.

    Parameters
    ----------
    vocabularies : mapping of str to sequence of str
        Terms by kind: "words", "chars" (within words) or "characters", in the order of the columns.
    idf : mapping of str to array
        Inverse document frequency of every term.
    """

    def __init__(self, vocabularies: Mapping[str, Sequence[str]], idf: Mapping[str, Float32]) -> None:
        self.vocabularies = {kind: list(terms) for kind, terms in vocabularies.items()}
        self.idf = dict(idf)

    @classmethod
    def fit(cls, kinds: Sequence[str], texts: Sequence[str]) -> TfidfEncoder:
        vocabularies, idf = {}, {}
        for kind in kinds:
            most = _MOST_TERMS if len(kinds) == 1 else _MOST_SHARED[kind]
            vectoriser = _fitted(kind, texts, most)
            if vectoriser is not None:
                vocabularies[kind] = vectoriser.get_feature_names_out().tolist()
                idf[kind] = vectoriser.idf_.astype(np.float32)
        if not vocabularies:
            raise InputError(f"none of the {len(texts)} training texts contains a word")
        return cls(vocabularies, idf)

    @classmethod
    def load(cls, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TfidfEncoder:
        vocabularies: dict[str, list[str]] = dict(record["vocabularies"])
        for kind, terms in vocabularies.items():
            if kind not in _VECTORISERS or kind not in tensors or tensors[kind].shape != (len(terms),):
                raise InputError("the vocabulary of the text encoder does not fit its weights")
            if len(set(terms)) < len(terms) or not bool((torch.isfinite(tensors[kind]) & (tensors[kind] > 0)).all()):
                raise InputError(
                    "the vocabulary of the text encoder has a term twice, or weights that are not positive"
                )
        return cls(vocabularies, {kind: tensors[kind].numpy() for kind in vocabularies})

    @property
    def record(self) -> dict[str, Any]:
        return {"kind": "tfidf", "vocabularies": [[kind, terms] for kind, terms in self.vocabularies.items()]}

    @property
    def description(self) -> str:
        words = {
            "words": "words and word pairs",
            "chars": "character n-grams within words",
            "characters": "character n-grams",
        }
        return "TF-IDF of " + " and ".join(f"{len(terms):,} {words[kind]}" for kind, terms in self.vocabularies.items())

    def tensors(self) -> dict[str, Tensor]:
        return {kind: torch.from_numpy(np.array(idf, np.float32)) for kind, idf in self.idf.items()}

    @cached_property
    def _vectorisers(self) -> dict[str, Any]:
        from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

        vectorisers = {}
        for kind, terms in self.vocabularies.items():
            options = {**_VECTORISERS[kind], "sublinear_tf": True, "vocabulary": terms}
            vectorisers[kind] = TfidfVectorizer(**options, dtype=np.float32)
            vectorisers[kind].idf_ = self.idf[kind]
        return vectorisers

    def encode(self, texts: Sequence[str]) -> Any:
        """A CSR matrix (N, D) of float32."""
        from scipy import sparse

        return sparse.hstack([vectoriser.transform(texts) for vectoriser in self._vectorisers.values()], format="csr")

    def segments(self, text: str, weights: npt.NDArray[Any]) -> Segments:
        """The text in pieces, each with what its terms add to a linear score with these weights (D,).

        Pieces are words with the punctuation around them or, where words are not separated, characters. The
        concatenated pieces are the text.
        """
        pieces = list(text) if "characters" in self.vocabularies else re.findall(r"\s+|\S+", text)
        scores = np.zeros(len(pieces))
        start = 0
        for kind, vectoriser in self._vectorisers.items():
            row = vectoriser.transform([text])
            value = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
            column = vectoriser.vocabulary_
            terms = _occurrences(kind, pieces)
            counts: dict[str, int] = {}
            for term, _ in terms:
                counts[term] = counts.get(term, 0) + 1
            for term, piece_numbers in terms:
                if term in column:
                    share = value.get(column[term], 0.0) * float(weights[start + column[term]]) / counts[term]
                    scores[piece_numbers] += share / len(piece_numbers)
            start += len(column)
        return list(zip(pieces, scores.tolist(), strict=True))


def _fitted(kind: str, texts: Sequence[str], most: int) -> Any:
    """A vectoriser of the texts; None if they contain no such term."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    for least in (2, 1) if len(texts) >= _FEW_TEXTS else (1,):
        options = {**_VECTORISERS[kind], "sublinear_tf": True, "min_df": least, "max_features": most}
        try:
            return TfidfVectorizer(**options, dtype=np.float32).fit(texts)
        except ValueError as error:  # also "After pruning, no terms remain"
            if "terms remain" not in str(error) and "empty vocabulary" not in str(error):
                raise
    return None


def _occurrences(kind: str, pieces: Sequence[str]) -> list[tuple[str, list[int]]]:
    """The terms of a text as scikit-learn's analysers find them: every occurrence, with the numbers of its pieces."""
    low, high = _VECTORISERS[kind]["ngram_range"]
    lower = [piece.lower() for piece in pieces]
    if kind == "chars":
        padded = [(number, f" {piece} ") for number, piece in enumerate(lower) if not piece.isspace()]
        return [
            (piece[start : start + size], [number])
            for number, piece in padded
            for size in range(low, high + 1)
            for start in range(max(1, len(piece) - size + 1))
        ]
    if kind == "words":
        units = [(word, number) for number, piece in enumerate(lower) for word in re.findall(r"(?u)\b\w\w+\b", piece)]
        joint = " "
    else:
        units = [(piece, number) for number, piece in enumerate(lower)]
        joint = ""
    return [
        (joint.join(unit for unit, _ in units[start : start + size]), [p for _, p in units[start : start + size]])
        for size in range(low, high + 1)
        for start in range(len(units) - size + 1)
    ]


class StaticEncoder:
    """The mean of the static token embeddings in the package wordllama (256 numbers), scaled to length 1."""

    record: dict[str, Any] = {"kind": "wordllama"}  # noqa: RUF012
    description = "static word embeddings (wordllama)"

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @cached_property
    def _model(self) -> tuple[Any, Float32]:
        check_encoder("wordllama")
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        spec = find_spec("wordllama")
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent  # its own loader looks elsewhere and then downloads the files
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
            weights = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
        except Exception as error:
            raise InputError(f"the embedding of the package wordllama cannot be loaded ({error})") from error
        return tokenizer, weights.astype(np.float32)

    def encode(self, texts: Sequence[str]) -> Float32:
        """An array (N, 256)."""
        tokenizer, weights = self._model
        out = np.zeros((len(texts), weights.shape[1]), np.float32)
        for start in range(0, len(texts), 1024):
            part = list(texts[start : start + 1024])
            for row, encoding in enumerate(tokenizer.encode_batch(part, add_special_tokens=False), start):
                if encoding.ids:
                    out[row] = weights[encoding.ids].mean(axis=0)
        length = np.linalg.norm(out, axis=1, keepdims=True)
        return np.asarray(out / np.where(length > 0, length, 1), np.float32)


class SentenceEncoder:
    """A model of sentence-transformers, by its name or path."""

    def __init__(self, model: str) -> None:
        self.model = model

    @property
    def record(self) -> dict[str, Any]:
        return _sentence_record(self.model)

    @property
    def description(self) -> str:
        return f"sentence embeddings of {self.model}"

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @cached_property
    def _loaded(self) -> Any:
        check_encoder(self.model)
        from sentence_transformers import SentenceTransformer

        try:
            return SentenceTransformer(self.model)
        except Exception as error:  # whatever its downloads, files and models raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"sentence-transformers cannot load the model {self.model!r} ({reason})") from error

    def encode(self, texts: Sequence[str]) -> Float32:
        """An array (N, D)."""
        return np.asarray(self._loaded.encode(list(texts), show_progress_bar=False), np.float32)


def _sentence_record(name: str) -> dict[str, Any]:
    return {"kind": "sentence-transformers", "model": name}
