"""The programs of these tests start with the frameworks imported, which takes longer than importing torch."""

import preloaded

preloaded.MODULES += ["lightning", "sklearn.datasets", "transformers.models.bert.modeling_bert", "transformers.trainer"]
