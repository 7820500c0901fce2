"""Several models in one training"""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from shapes import shape


def encoder(width=32):
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(16 if i == 0 else width, width), nn.BatchNorm1d(width), nn.ReLU()) for i in range(4)),
        nn.Linear(width, 16),
    )


class MoCo(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder_q = encoder()
        self.encoder_k = copy.deepcopy(self.encoder_q).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(16, 64), dim=0))

    def forward(self, one, two):
        with torch.no_grad():
            for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
                k.mul_(0.99).add_(q, alpha=0.01)
            keys = F.normalize(self.encoder_k(two), dim=1)
        queries = F.normalize(self.encoder_q(one), dim=1)
        logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ self.queue.clone()], dim=1)
        self.queue = torch.cat([self.queue[:, len(keys) :], keys.t()], dim=1)
        return logits / 0.07


@shape(steps=60, prefix=6, tells=["RATES_UNKNOWN"])
def moco():
    """A momentum encoder and a queue in the manner of MoCo: the forward pass moves weights and buffers"""
    import egeria

    model = MoCo()
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.03, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x = torch.randn(8, 16)
        logits = model(x + 0.1 * torch.randn(8, 16), x + 0.1 * torch.randn(8, 16))
        loss = F.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60)
def simclr():
    """Contrastive learning in the manner of SimCLR: two views of a sample in two passes, cosine with warm-up"""
    import egeria

    model = nn.Sequential(encoder(), nn.ReLU(), nn.Linear(16, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 54)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [6])
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for _ in range(60):
        x = torch.randn(8, 16)
        one, two = (F.normalize(model(x + 0.1 * torch.randn(8, 16)), dim=1) for _ in range(2))
        z = torch.cat([one, two])
        similar = (z @ z.t() / 0.5).masked_fill(torch.eye(16, dtype=torch.bool), -1e9)
        loss = F.cross_entropy(similar, (torch.arange(16) + 8) % 16)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def distillation():
    """A student that learns from a teacher without gradients"""
    import egeria

    teacher, student = encoder(64).eval().requires_grad_(False), encoder(16)
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    session = egeria.attach(student, optimizer, total_steps=60)
    for _ in range(60):
        x, labels = torch.randn(8, 16), torch.randint(16, (8,))
        with torch.no_grad():
            wanted = F.softmax(teacher(x) / 2, dim=1)
        scores = student(x)
        soft = F.kl_div(F.log_softmax(scores / 2, dim=1), wanted, reduction="batchmean") * 4
        loss = 0.5 * soft + 0.5 * F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss)
    return student


@shape(steps=60, tells=["RATES_UNKNOWN"])
def triplet_siamese():
    """A network that is called three times a step, on an anchor, something alike and something else"""
    import egeria

    model = encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        anchor, other = torch.randn(8, 16), torch.randn(8, 16)
        outputs = model(anchor), model(anchor + 0.1 * torch.randn(8, 16)), model(other)
        loss = F.triplet_margin_loss(*outputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def gan():
    """A generator and a discriminator in the manner of DCGAN, with an optimizer and a session each"""
    import egeria

    def up(i, o):
        return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

    def down(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))

    generator = nn.Sequential(up(8, 32), up(32, 32), up(32, 16), nn.Conv2d(16, 1, 3, 1, 1), nn.Tanh())
    discriminator = nn.Sequential(down(1, 16), down(16, 32), down(32, 32), nn.Conv2d(32, 1, 2), nn.Flatten(0))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    session_g = egeria.attach(generator, optimizer_g, total_steps=60)
    session_d = egeria.attach(discriminator, optimizer_d, total_steps=60)
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(60):
        real, fake = torch.randn(4, 1, 16, 16), generator(torch.randn(4, 8, 2, 2))
        optimizer_d.zero_grad()
        loss_d = criterion(discriminator(real), torch.ones(4))
        loss_d.backward()
        loss_fake = criterion(discriminator(fake.detach()), torch.zeros(4))
        loss_fake.backward()
        optimizer_d.step()
        session_d.step(loss_d + loss_fake)
        optimizer_g.zero_grad()
        loss_g = criterion(discriminator(fake), torch.ones(4))
        loss_g.backward()
        optimizer_g.step()
        session_g.step(loss_g)
    return generator, discriminator


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 32)
        self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
        self.fc3, self.fc4 = nn.Linear(8, 32), nn.Linear(32, 64)

    def encode(self, x):
        hidden = F.relu(self.fc2(F.relu(self.fc1(x))))
        return self.mean(hidden), self.spread(hidden)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mean, spread = self.encode(x)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * spread)
        return self.decode(z), mean, spread


@shape(steps=60, tells=["RATES_UNKNOWN"])
def vae():
    """A variational autoencoder: random numbers between its layers, a tuple as output"""
    import egeria

    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x = torch.rand(8, 64)
        made, mean, spread = model(x)
        loss = F.binary_cross_entropy(made, x, reduction="sum")
        loss = loss - 0.5 * torch.sum(1 + spread - mean.pow(2) - spread.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 32))
        self.enter, self.down = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 4, 2, 1)
        self.leave = nn.Sequential(nn.GroupNorm(4, 32), nn.SiLU(), nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x, t):
        first = F.silu(self.enter(x))
        hidden = F.silu(self.down(first)) + self.time(t[:, None] / 100)[:, :, None, None]
        return self.leave(torch.cat([self.up(F.silu(self.middle(hidden))), first], dim=1))


@shape(steps=60, tells=["RATES_UNKNOWN"])
def diffusion():
    """A denoising diffusion model with a U-Net, a time embedding, and an average of its weights by hand"""
    import egeria

    model = Denoiser()
    average = copy.deepcopy(model)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, t, noise = torch.randn(4, 1, 16, 16), torch.randint(100, (4,)), torch.randn(4, 1, 16, 16)
        part = kept[t][:, None, None, None]
        loss = F.mse_loss(model(part.sqrt() * x + (1 - part).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters()):
                mean.lerp_(value, 0.05)
        session.step(loss)
    return model, average


@shape(steps=60, tells=["RATES_UNKNOWN"])
def dqn():
    """Deep Q-learning: batches of one to act, a target network that follows, Huber loss, gradients clipped by value"""
    import egeria

    policy = nn.Sequential(
        nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)
    )
    target = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
    session = egeria.attach(policy, optimizer, total_steps=60)
    for _ in range(60):
        with torch.no_grad():
            policy(torch.randn(1, 4)).argmax(1)
        states, actions, rewards, after = torch.randn(8, 4), torch.randint(2, (8, 1)), torch.randn(8), torch.randn(8, 4)
        values = policy(states).gather(1, actions)
        with torch.no_grad():
            wanted = rewards + 0.99 * target(after).max(1).values
        loss = F.smooth_l1_loss(values, wanted[:, None])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        with torch.no_grad():
            for t, p in zip(target.parameters(), policy.parameters()):
                t.lerp_(p, 0.005)
        session.step(loss)
    return policy, target


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1, self.affine2 = nn.Linear(4, 32), nn.Linear(32, 32)
        self.action_head, self.value_head = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x):
        x = F.relu(self.affine2(F.relu(self.affine1(x))))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


@shape(steps=40, prefix=1, tells=["RATES_UNKNOWN"])
def actor_critic():
    """An actor-critic that is called once for each state, without a batch, twenty times before a step"""
    import egeria

    model = ActorCritic()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    session = egeria.attach(model, optimizer, total_steps=40)
    for _ in range(40):
        losses = []
        for _ in range(20):
            chances, value = model(torch.randn(4))
            choice = torch.distributions.Categorical(chances)
            action, reward = choice.sample(), torch.randn(())
            losses.append(-choice.log_prob(action) * (reward - value.item()) + F.smooth_l1_loss(value[0], reward))
        optimizer.zero_grad()
        loss = torch.stack(losses).sum()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5),
            nn.Parameter(torch.zeros(outputs)),
        )

    def forward(self, x, neighbours):
        return torch.sparse.mm(neighbours, x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.gc1, self.gc2, self.gc3 = GraphConvolution(8, 16), GraphConvolution(16, 16), GraphConvolution(16, 3)

    def forward(self, x, neighbours):
        x = F.dropout(F.relu(self.gc1(x, neighbours)), 0.5, self.training)
        return F.log_softmax(self.gc3(F.relu(self.gc2(x, neighbours)), neighbours), dim=1)


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def graph_network():
    """A graph convolution network by hand: the whole graph at each step, a sparse matrix as input"""
    import egeria

    nodes, labels = torch.randn(40, 8), torch.randint(3, (40,))
    neighbours = ((torch.rand(40, 40) < 0.1).float() + torch.eye(40)).clamp(max=1)
    neighbours = (neighbours / neighbours.sum(1, keepdim=True)).to_sparse()
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(nodes, neighbours)[:30], labels[:30])
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def recommender():
    """Embeddings of users and items under a small network, Adagrad"""
    import egeria

    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(50, 16), nn.Embedding(70, 16)
            self.layers = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
            self.rating = nn.Linear(16, 1)

        def forward(self, user, item):
            return self.rating(self.layers(torch.cat([self.users(user), self.items(item)], dim=1))).squeeze(1)

    model = Recommender()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        loss = F.mse_loss(model(torch.randint(50, (16,)), torch.randint(70, (16,))), torch.rand(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model
