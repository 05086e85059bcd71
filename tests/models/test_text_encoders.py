"""Encoders of texts: TF-IDF against scikit-learn, saved without pickle, and the words that speak for a label."""

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from spml.errors import InputError
from spml.models.text_encoders import check_encoder, encoder_from_record, fit_encoder

TEXTS = ["The red apple fell.", "A green pear, and a red one!", "Naïve <b>apples</b> & pears", ""] * 20

WITHOUT_BLANKS = ["東京都は日本の首都であり世界最大の都市圏である", "大阪は西日本の中心都市である"] * 30


def test_words_are_those_of_scikit_learn():
    oracle = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    expected = oracle.fit_transform(TEXTS).toarray()
    encoder = fit_encoder("words", TEXTS)
    assert encoder.vocabularies["words"] == oracle.get_feature_names_out().tolist()
    np.testing.assert_allclose(encoder.encode(TEXTS).toarray(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["tfidf", "words", "chars", "words+chars"])
def test_an_encoder_survives_a_record_with_sorted_keys(name):
    encoder = fit_encoder(name, TEXTS)
    record = json.loads(json.dumps(encoder.record, sort_keys=True))
    again = encoder_from_record(record, encoder.tensors())
    assert (again.encode(TEXTS) != encoder.encode(TEXTS)).nnz == 0
    assert again.description == encoder.description


def test_default_depends_on_the_script():
    assert set(fit_encoder("tfidf", TEXTS).vocabularies) == {"words", "chars"}
    without_blanks = [
        "東京都は日本の首都であり世界最大の都市圏のひとつである",
        "大阪は西日本の中心都市として商業が盛んである",
    ] * 30
    assert set(fit_encoder("tfidf", without_blanks).vocabularies) == {"characters"}


@pytest.mark.parametrize("texts", [TEXTS, WITHOUT_BLANKS])
def test_contributions_of_the_pieces_add_up_to_the_linear_score(texts):
    encoder = fit_encoder("tfidf", texts)
    for text in texts[:3]:
        row = encoder.encode([text]).toarray()[0]
        weights = np.random.default_rng(0).normal(size=len(row))
        segments = encoder.segments(text, weights)
        assert "".join(piece for piece, _ in segments) == text
        assert sum(score for _, score in segments) == pytest.approx(float(row @ weights), abs=1e-4)


def test_texts_without_words_raise():
    with pytest.raises(InputError, match="none of the 2 training texts contains a word"):
        fit_encoder("words", ["", "!"])


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("spml.models.text_encoders.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "\.\[text\]" in the checkout'):
        check_encoder("wordllama")
    with pytest.raises(InputError, match="pip install sentence-transformers"):
        check_encoder("all-MiniLM-L6-v2")


def test_static_embedding_has_unit_length():
    pytest.importorskip("wordllama", reason="needs the extra text")
    rows = fit_encoder("wordllama", TEXTS).encode(["red apple", ""])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 0], atol=1e-5)


def test_a_vocabulary_that_does_not_fit_raises():
    encoder = fit_encoder("words", TEXTS)
    with pytest.raises(InputError, match="does not fit"):
        encoder_from_record({"kind": "tfidf", "vocabularies": [["words", ["a"]]]}, encoder.tensors())
    with pytest.raises(InputError, match="unknown"):
        encoder_from_record({"kind": "x"}, {})
