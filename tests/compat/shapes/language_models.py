"""Language models"""

import peft
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from shapes import shape


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads, self.qkv, self.project = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class CharGPT(nn.Module):
    def __init__(self, vocabulary=65, width=32, length=16, layers=4):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, tokens, targets=None):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@shape(steps=60, tells=["RATES_UNKNOWN"])
def char_gpt():
    """A small GPT with tied embeddings in the manner of nanoGPT: two groups of weights, clipping, a rate by hand"""
    import egeria

    steps = 60
    data = torch.randint(65, (2000,))
    model = CharGPT()
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    session = egeria.attach(model, optimizer, total_steps=steps)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - step / steps)
        start = torch.randint(len(data) - 17, (8,))
        x = torch.stack([data[i : i + 16] for i in start])
        y = torch.stack([data[i + 1 : i + 17] for i in start])
        logits, loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        session.step(loss)
    return model


def tiny_gpt2():
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2Config(vocab_size=100, n_positions=32, n_embd=32, n_layer=4, n_head=4, **ends)


def tiny_bert():
    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 32}
    return BertConfig(num_hidden_layers=4, num_attention_heads=4, **sizes)


@shape(steps=60)
def gpt2_own_loop():
    """GPT-2 of Transformers in a loop of its own, with Transformers' cosine schedule"""
    import egeria

    model = GPT2LMHeadModel(tiny_gpt2())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 6, 60)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    model.train()
    for _ in range(60):
        tokens = torch.randint(100, (4, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=60)
def gpt2_lora():
    """GPT-2 with LoRA by peft: a few small matrices train in each layer, everything else is fixed"""
    import egeria

    adapters = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.1)
    model = peft.get_peft_model(GPT2LMHeadModel(tiny_gpt2()), adapters)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    scheduler = get_linear_schedule_with_warmup(optimizer, 0, 60)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    model.train()
    for _ in range(60):
        tokens = torch.randint(100, (4, 16))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


class Reviews(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(100, (8 + index % 5,), generator=generator)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": index % 2}


def pad(reviews):
    longest = max(len(review["input_ids"]) for review in reviews)
    padded = {}
    for key in ("input_ids", "attention_mask"):
        padded[key] = torch.stack([F.pad(review[key], (0, longest - len(review[key]))) for review in reviews])
    return {**padded, "labels": torch.tensor([review["labels"] for review in reviews])}


@shape(steps=60)
def bert_classifier_trainer():
    """BERT for classification in Transformers' Trainer: padded batches, evaluation, checkpoints, the best one loaded"""
    from egeria.integrations.huggingface import EgeriaCallback

    arguments = TrainingArguments(
        "out",
        num_train_epochs=3,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        warmup_steps=5,
        logging_steps=10,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    model = BertForSequenceClassification(tiny_bert())
    trainer = Trainer(model, arguments, pad, train_dataset=Reviews(), eval_dataset=Reviews())
    trainer.add_callback(EgeriaCallback())
    trainer.train()
    return model


@shape(steps=60)
def bert_masked_lm():
    """BERT's masked language model, whose decoder shares the embedding's weights, with a linear schedule"""
    import egeria

    model = BertForMaskedLM(tiny_bert())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 6, 60)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    model.train()
    for _ in range(60):
        labels = torch.randint(100, (4, 16))
        masked = torch.rand(labels.shape) < 0.15
        tokens = labels.masked_fill(masked, 3)
        loss = model(input_ids=tokens, labels=labels.masked_fill(~masked, -100)).loss.nan_to_num()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=40)
def qwen2_checkpointed():
    """A small Qwen2 with tied embeddings, gradient checkpointing, bfloat16 autocast"""
    import egeria

    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    config = Qwen2Config(num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **sizes)
    model = Qwen2ForCausalLM(config)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 4, 40)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    model.train()
    for _ in range(40):
        tokens = torch.randint(100, (4, 16))
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=40, tells=["RATES_UNKNOWN"])
def llama_batch_of_one():
    """A small Llama, batches of one sample, four of them accumulated in a step"""
    import egeria

    sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    model = LlamaForCausalLM(LlamaConfig(num_attention_heads=4, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=40)
    model.train()
    for index in range(160):
        tokens = torch.randint(100, (1, 12 + index % 3))
        loss = model(input_ids=tokens, labels=tokens).loss / 4
        loss.backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            session.step(loss)
    return model


class WordLSTM(nn.Module):
    def __init__(self, vocabulary=80, width=32):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(vocabulary, width)
        self.rnn, self.decoder = nn.LSTM(width, width, num_layers=2, dropout=0.2), nn.Linear(width, vocabulary)
        self.decoder.weight = self.encoder.weight

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)), hidden


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def lstm_word_model():
    """An LSTM language model with tied weights: hidden states carried from batch to batch, SGD written by hand"""
    import egeria

    data = torch.randint(80, (61 * 8, 4))
    model = WordLSTM()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    session = egeria.attach(model, optimizer, total_steps=60)
    hidden = tuple(torch.zeros(2, 4, 32) for _ in range(2))
    model.train()
    for step in range(60):
        tokens, targets = data[step * 8 : step * 8 + 8], data[step * 8 + 1 : step * 8 + 9]
        hidden = tuple(h.detach() for h in hidden)
        optimizer.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = F.cross_entropy(output.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_STAY_HIGH"])
def transformer_encoder_classifier():
    """torch's nn.TransformerEncoder with a padding mask, Noam's schedule by LambdaLR"""
    import egeria

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 32, padding_idx=0)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 4)
            self.head = nn.Linear(32, 3)

        def forward(self, tokens):
            hidden = self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0)
            return self.head(hidden.mean(dim=1))

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98))
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) ** -0.5, (step + 1) * 10**-1.5))
    session = egeria.attach(model, optimizer, scheduler=rate, total_steps=60)
    model.train()
    for _ in range(60):
        tokens = torch.randint(1, 50, (8, 12))
        tokens[0, 8:] = 0
        loss = F.cross_entropy(model(tokens), torch.randint(3, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()
        session.step(loss)
    return model
