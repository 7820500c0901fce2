"""From sequence to sequence"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from shapes import shape


class Pairs(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, index):
        tokens = torch.randint(4, 60, (10,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.flip(0)}


@shape(steps=40, prefix=4)
def t5_seq2seq_trainer():
    """T5 in Transformers' Seq2SeqTrainer, with accumulation of two batches"""
    from egeria.integrations.huggingface import EgeriaCallback

    arguments = Seq2SeqTrainingArguments(
        "out",
        num_train_epochs=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=3, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    trainer = Seq2SeqTrainer(model, arguments, train_dataset=Pairs())
    trainer.add_callback(EgeriaCallback())
    trainer.train()
    return model


@shape(steps=40, prefix=4, tells=["RATES_UNKNOWN"])
def bart_own_loop():
    """BART in a loop of its own, with samples generated now and then in between"""
    import egeria

    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_layers": 3, "decoder_layers": 3}
    model = BartForConditionalGeneration(BartConfig(vocab_size=64, forced_eos_token_id=2, **sizes, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=40)
    for step in range(40):
        model.train()
        tokens = torch.randint(4, 60, (4, 10))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
        if step % 10 == 9:
            model.eval()
            model.generate(tokens[:1], max_new_tokens=4, do_sample=False)
    return model


@shape(steps=40)
def whisper():
    """Whisper: a spectrogram in, text out, two samples in a batch"""
    import egeria

    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 16}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_layers": 3, "decoder_layers": 3}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(vocab_size=64, max_source_positions=30, max_target_positions=20, **sizes, **heads, **ends)
    model = WhisperForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    model.train()
    for _ in range(40):
        loss = model(input_features=torch.randn(2, 16, 60), labels=torch.randint(4, 60, (2, 8))).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


class Encoder(nn.Module):
    def __init__(self, words=40, width=32):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)

    def forward(self, tokens):
        return self.gru(self.embedding(tokens))


class Decoder(nn.Module):
    def __init__(self, words=40, width=32):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, token, hidden):
        output, hidden = self.gru(F.relu(self.embedding(token)), hidden)
        return self.out(output[:, -1]), hidden


@shape(steps=40, prefix=1, tells=["RATES_UNKNOWN"])
def gru_translator():
    """An encoder and a decoder of GRUs with an optimizer each, one sentence a step, the decoder called word by word"""
    import egeria

    encoder, decoder = Encoder(), Decoder()
    encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    decoder_optimizer = torch.optim.SGD(decoder.parameters(), lr=0.05)
    encoder_session = egeria.attach(encoder, encoder_optimizer, total_steps=40)
    decoder_session = egeria.attach(decoder, decoder_optimizer, total_steps=40)
    for _ in range(40):
        source, target = torch.randint(40, (1, 7)), torch.randint(40, (1, 5))
        _, hidden = encoder(source)
        token, loss = torch.zeros(1, 1, dtype=torch.long), 0
        for position in range(target.shape[1]):
            scores, hidden = decoder(token, hidden)
            loss = loss + F.cross_entropy(scores, target[:, position])
            token = target[:, position : position + 1]
        encoder_optimizer.zero_grad()
        decoder_optimizer.zero_grad()
        loss.backward()
        encoder_optimizer.step()
        decoder_optimizer.step()
        encoder_session.step(loss)
        decoder_session.step(loss)
    return encoder, decoder
