"""Training frameworks and training loops of people's own"""

import accelerate
import lightning as L
import torch
from lightning.pytorch.callbacks import BaseFinetuning, EarlyStopping, ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from shapes import shape

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}


def vectors(count=160):
    return TensorDataset(torch.randn(count, 32), torch.randint(4, (count,)))


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 32))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        z = self.encoder(x)
        loss = F.mse_loss(self.decoder(z), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def lightning_first_example():
    """Lightning's first example: an autoencoder whose encoder and decoder are called in training_step"""
    from egeria.integrations.lightning import EgeriaCallback

    model = LitAutoEncoder()
    trainer = L.Trainer(max_epochs=3, enable_checkpointing=False, **QUIET)
    trainer.callbacks.append(EgeriaCallback())
    trainer.fit(model, DataLoader(vectors(), batch_size=8))
    return model


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            *(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()))
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, self.parameters()), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)]


@shape(steps=60)
def lightning_validation():
    """A classifier in Lightning with validation, early stopping, checkpoints and clipping, a rate for each epoch"""
    from egeria.integrations.lightning import EgeriaCallback

    model = Classifier()
    callbacks = [EarlyStopping("val_loss", patience=50), ModelCheckpoint("out", monitor="val_loss")]
    trainer = L.Trainer(max_epochs=6, callbacks=callbacks, gradient_clip_val=1.0, **QUIET)
    trainer.callbacks.append(EgeriaCallback())
    trainer.fit(model, DataLoader(vectors(80), batch_size=8, shuffle=True), DataLoader(vectors(16), batch_size=8))
    return model


class UnfreezeLater(BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.01)


@shape(steps=60)
def lightning_finetuning():
    """Lightning's finetuning callback: the backbone joins the optimizer in the second epoch"""
    from egeria.integrations.lightning import EgeriaCallback

    model = Classifier()
    trainer = L.Trainer(max_epochs=6, callbacks=[UnfreezeLater()], enable_checkpointing=False, **QUIET)
    trainer.callbacks.append(EgeriaCallback())
    trainer.fit(model, DataLoader(vectors(80), batch_size=8, shuffle=True))
    return model


@shape(steps=30)
def lightning_accumulation():
    """Lightning with accumulation of two batches, in bfloat16, with inference in between"""
    from egeria.integrations.lightning import EgeriaCallback

    model = Classifier()
    trainer = L.Trainer(
        max_epochs=6, precision="bf16-mixed", accumulate_grad_batches=2, enable_checkpointing=False, **QUIET
    )
    trainer.callbacks.append(EgeriaCallback())
    trainer.fit(model, DataLoader(vectors(80), batch_size=8, shuffle=True))
    trainer.predict(model, DataLoader(vectors(8).tensors[0], batch_size=8))
    return model


class LitGAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
        self.discriminator = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, z):
        return self.generator(z)

    def training_step(self, batch, batch_idx):
        optimizer_g, optimizer_d = self.optimizers()
        x, ones, zeros = batch[0], torch.ones(len(batch[0]), 1), torch.zeros(len(batch[0]), 1)
        self.toggle_optimizer(optimizer_g)
        loss = F.binary_cross_entropy_with_logits(self.discriminator(self(torch.randn(len(x), 8))), ones)
        optimizer_g.zero_grad()
        self.manual_backward(loss)
        optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)
        self.toggle_optimizer(optimizer_d)
        real = F.binary_cross_entropy_with_logits(self.discriminator(x), ones)
        fake = F.binary_cross_entropy_with_logits(self.discriminator(self(torch.randn(len(x), 8)).detach()), zeros)
        optimizer_d.zero_grad()
        self.manual_backward(real + fake)
        optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)

    def configure_optimizers(self):
        adam = torch.optim.Adam
        return adam(self.generator.parameters(), lr=2e-4), adam(self.discriminator.parameters(), lr=2e-4)


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def lightning_gan():
    """A GAN in Lightning with two optimizers that it steps itself"""
    from egeria.integrations.lightning import EgeriaCallback

    model = LitGAN()
    trainer = L.Trainer(max_epochs=3, enable_checkpointing=False, **QUIET)
    trainer.callbacks.append(EgeriaCallback())
    trainer.fit(model, DataLoader(vectors(), batch_size=8))
    return model


def layers(width=32, norm=True):
    blocks = (
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width) if norm else nn.Identity(), nn.ReLU())
        for _ in range(4)
    )
    return nn.Sequential(*blocks, nn.Linear(width, 4))


@shape(steps=40)
def accelerate_accumulation():
    """accelerate: prepared model, optimizer, loader and scheduler, accumulation, clipping"""
    import egeria

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 40)
    loader = DataLoader(vectors(160), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    for _ in range(4):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    session.step(loss)
    return accelerator.unwrap_model(model)


class OwnTrainer:
    def __init__(self, model, dataset, steps):
        self.model, self.steps = model, steps
        self.callbacks, self.loader = {}, DataLoader(dataset, 8, shuffle=True)

    def add_callback(self, name, callback):
        self.callbacks.setdefault(name, []).append(callback)

    def run(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        for callback in self.callbacks.get("on_start", []):
            callback(self)
        batches = iter(self.loader)
        for _ in range(self.steps):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(self.loader)
                x, y = next(batches)
            self.loss = F.cross_entropy(self.model(x), y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            self.optimizer.step()
            for callback in self.callbacks.get("on_batch_end", []):
                callback(self)


@shape(steps=60, tells=["RATES_UNKNOWN"])
def own_trainer_class():
    """A trainer of one's own, with callbacks and an endless loader, in the manner of minGPT"""
    import egeria

    sessions = []
    trainer = OwnTrainer(layers(), vectors(), steps=60)
    trainer.add_callback(
        "on_start", lambda t: sessions.append(egeria.attach(t.model, t.optimizer, total_steps=t.steps))
    )
    trainer.add_callback("on_batch_end", lambda t: sessions[0].step(t.loss))
    trainer.run()
    return trainer.model


class Words(torch.utils.data.IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        while True:
            x = torch.randn(32, generator=generator)
            yield x, int(x.sum() > 0)


@shape(steps=60, tells=["RATES_UNKNOWN"])
def iterable_dataset():
    """An endless IterableDataset, an iterator that a loop takes batches from"""
    import egeria

    model, batches = layers(), iter(DataLoader(Words(), batch_size=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = next(batches)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=60)
def loader_with_workers():
    """A loader with two workers that stay, in three epochs, with the sum of losses for a progress bar"""
    import egeria

    model, loader = layers(), DataLoader(vectors(), 8, shuffle=True, num_workers=2, persistent_workers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=3 * len(loader))
    for _ in range(3):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
            session.step(loss)
        scheduler.step()
    return model
