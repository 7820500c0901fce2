"""Tricks around a step"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from shapes import shape


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()) for _ in range(4)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def batch():
    return torch.randn(8, 32), torch.randint(4, (8,))


@shape(steps=60, tells=["RATES_UNKNOWN"])
def gradient_penalty():
    """A penalty on the gradient by the input, which takes a second derivative"""
    import egeria

    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        x.requires_grad_(True)
        scores = model(x)
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        loss = F.cross_entropy(scores, y) + 0.1 * slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def spectral_norm():
    """Spectral and weight norms by torch's parametrizations"""
    import egeria

    wrap = parametrizations.spectral_norm, parametrizations.weight_norm
    blocks = (nn.Sequential(wrap[i % 2](nn.Linear(32, 32)), nn.ReLU()) for i in range(4))
    model = nn.Sequential(*blocks, nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, prefix=1, tells=["RATES_UNKNOWN"])
def sparse_embedding():
    """A sparse embedding with SparseAdam beside Adam for the rest"""
    import egeria

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingBag(60, 16, sparse=True)
            self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, tokens):
            return self.layers(self.table(tokens))

    model = Bag()
    optimizers = [torch.optim.SparseAdam(model.table.parameters()), torch.optim.Adam(model.layers.parameters())]
    session = egeria.attach(model, optimizers, total_steps=60)
    for _ in range(60):
        loss = F.cross_entropy(model(torch.randint(60, (8, 5))), torch.randint(4, (8,)))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def features_by_hooks():
    """Features taken by forward hooks, for a loss on what is inside the model"""
    import egeria

    model, features = Net(), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, inputs, output: features.append(output))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        features.clear()
        x, y = batch()
        loss = F.cross_entropy(model(x), y) + 0.01 * sum(feature.square().mean() for feature in features)
        assert len(features) == 4
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def saved_on_cpu():
    """Activations offloaded by torch.autograd.graph.save_on_cpu"""
    import egeria

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        with torch.autograd.graph.save_on_cpu():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def pseudo_labels():
    """Labels that the model itself gives, in evaluation mode and without gradients, in front of each step"""
    import egeria

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        (x, y), (unlabelled, _) = batch(), batch()
        model.eval()
        with torch.no_grad():
            guessed = model(unlabelled).argmax(1)
        model.train()
        noisy = unlabelled + 0.1 * torch.randn_like(unlabelled)
        loss = F.cross_entropy(model(x), y) + 0.3 * F.cross_entropy(model(noisy), guessed)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, prefix=3, tells=["RATES_UNKNOWN"])
def models_in_a_list():
    """An encoder and a decoder that are called one by one, in one ModuleList and one optimizer"""
    import egeria

    encoder = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)))
    decoder = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    both = nn.ModuleList([encoder, decoder])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-3)
    session = egeria.attach(both, optimizer, total_steps=60)
    for _ in range(60):
        x, _ = batch()
        loss = F.mse_loss(decoder(encoder(x)), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return both


@shape(steps=60, tells=["RATES_UNKNOWN"])
def pure_bfloat16():
    """Weights in bfloat16, inputs converted"""
    import egeria

    model = Net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        x, y = batch()
        loss = F.cross_entropy(model(x.bfloat16()).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=50, tells=["RATES_UNKNOWN"])
def bad_batches_skipped():
    """A loop that leaves out a batch whose loss is not finite"""
    import egeria

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    session = egeria.attach(model, optimizer, total_steps=50)
    for index in range(60):
        x, y = batch()
        if index % 6 == 5:
            x[0, 0] = float("nan")
        loss = F.cross_entropy(model(x), y)
        if not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=60, counts=[10, 60], tells=["RATES_UNKNOWN"])
def cell_run_twice():
    """A notebook's cell that is interrupted after 10 steps and run again: optimizer and session made anew"""
    import egeria

    model = Net()
    for steps in (10, 60):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        session = egeria.attach(model, optimizer, total_steps=60)
        for _ in range(steps):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def group_added_later():
    """The head trains alone at first, and the rest joins the optimizer by add_param_group"""
    import egeria

    model = Net()
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
    for parameter in rest:
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for step in range(60):
        if step == 10:
            for parameter in rest:
                parameter.requires_grad_(True)
            optimizer.add_param_group({"params": rest, "lr": 0.005})
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=20, prefix=1, refused="EMBEDDING_MAX_NORM")
def embedding_max_norm():
    """An embedding with max_norm, whose forward pass changes its weights"""
    import egeria

    model = nn.Sequential(nn.Embedding(30, 16, max_norm=1.0), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = egeria.attach(model, optimizer, total_steps=20)
    for _ in range(20):
        loss = F.cross_entropy(model(torch.randint(30, (8,))), torch.randint(4, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


@shape(steps=20, refused="SCRIPTED_MODULE")
def scripted_model():
    """A model made by torch.jit.script"""
    import egeria

    model = torch.jit.script(
        nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(3)), nn.Linear(32, 4))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    session = egeria.attach(model, optimizer, total_steps=20)
    for _ in range(20):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model
