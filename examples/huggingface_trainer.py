"""A loss from spml in Hugging Face's Trainer: override `compute_loss`.

python examples/huggingface_trainer.py

The model here is a tiny BERT with random weights, so that the script needs no download. For a real model:
AutoModelForSequenceClassification.from_pretrained("distilbert-base-uncased", num_labels=...).
"""

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, Trainer, TrainingArguments

import spml

CLASSES = 5


class SinglePositiveTrainer(Trainer):
    """Trainer with a single positive loss. Labels are 1 (observed) and 0 (unknown)."""

    criterion = spml.loss("em")

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """Compute the loss from logits and labels."""
        known = inputs.pop("labels")
        outputs = model(**inputs)
        loss = self.criterion(outputs.logits, known)
        return (loss, outputs) if return_outputs else loss


class Sentences(Dataset[dict[str, Tensor]]):
    """Token sequences in which token 10 + c stands for class c; one of the present classes is observed."""

    def __init__(self, rows: int, observed: bool) -> None:
        truth = (torch.rand(rows, CLASSES) < 0.4).long()
        truth[torch.arange(rows), torch.randint(CLASSES, (rows,))] = 1
        self.tokens = torch.randint(20, 60, (rows, 12))
        for label in range(CLASSES):
            self.tokens[:, 2 * label] = torch.where(truth[:, label] == 1, 10 + label, self.tokens[:, 2 * label])
        one = torch.nn.functional.one_hot(torch.multinomial(truth.float(), 1).squeeze(1), CLASSES)
        self.labels = one if observed else truth

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[row], "labels": self.labels[row]}


def mean_average_precision(prediction: EvalPrediction) -> dict[str, float]:
    """Score predictions against all labels."""
    return {"map": float(spml.metrics.mean_average_precision(prediction.predictions, prediction.label_ids))}


def main(epochs: int = 12) -> float:
    """Train and return the mAP on rows with full labels."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        num_labels=CLASSES,
        initializer_range=0.1,  # the default, 0.02, suits a width of 768; here, attention would hardly start to learn
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=3e-3, report_to=[],
            save_strategy="no", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = SinglePositiveTrainer(
            BertForSequenceClassification(config),
            arguments,
            train_dataset=Sentences(800, observed=True),
            eval_dataset=Sentences(200, observed=False),
            compute_metrics=mean_average_precision,
        )
        trainer.train()
        score = float(trainer.evaluate()["eval_map"])
    print(f"test mAP: {score:.3f}")
    return score


if __name__ == "__main__":
    main()
