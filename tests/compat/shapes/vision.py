"""Images"""

import timm
import timm.loss
import timm.optim
import timm.scheduler
import timm.utils
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator

from shapes import shape


def images(count, classes=10, size=24):
    return TensorDataset(torch.randn(count, 3, size, size), torch.randint(classes, (count,)))


def small_cnn(classes=10):
    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(
        block(3, 16),
        block(16, 32),
        block(32, 32),
        block(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


@shape(steps=40, ci=False)
def resnet18_step_lr():
    """ResNet-18 of torchvision, SGD, a StepLR that is stepped once an epoch, accuracy measured after each"""
    import egeria

    epochs, loader, held_out = 4, DataLoader(images(40), batch_size=4, shuffle=True), DataLoader(images(8), 4)
    model = torchvision.models.resnet18(num_classes=10)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=epochs * len(loader))
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            session.step(loss)
        scheduler.step()
        model.eval()
        with torch.no_grad():
            sum((model(x).argmax(1) == y).sum() for x, y in held_out)
    return model


@shape(steps=40, ci=False)
def mobilenet_one_cycle():
    """MobileNetV3 of torchvision with OneCycleLR, stepped at each step"""
    import egeria

    model = torchvision.models.mobilenet_v3_small(num_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=40)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    for x, y in DataLoader(images(160, size=32), batch_size=4, shuffle=True):
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        session.step(loss)
    return model


@shape(steps=60, tells=["RATES_UNKNOWN"])
def cnn_reduce_on_plateau():
    """A small network whose rate ReduceLROnPlateau sets after each epoch, by the loss on other images"""
    import egeria

    epochs, loader, held_out = 6, DataLoader(images(80), batch_size=8, shuffle=True), images(16)
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=epochs * len(loader))
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            session.step(loss)
        model.eval()
        with torch.no_grad():
            scheduler.step(F.cross_entropy(model(held_out.tensors[0]), held_out.tensors[1]))
    return model


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, 1), nn.Conv2d(16, 32, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(1152, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), dim=1)


@shape(steps=60, tells=["RATES_UNKNOWN"])
def mnist_constant_rate():
    """Digits in the way of the first tutorials: two convolutions, dropout, nll_loss, Adadelta, no scheduler"""
    import egeria

    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    session = egeria.attach(model, optimizer, total_steps=60)
    model.train()
    for _ in range(60):
        data, target = torch.randn(16, 1, 16, 16), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


def tiny_vit():
    return timm.models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, num_classes=10, embed_dim=32, depth=4, num_heads=4, drop_path_rate=0.1
    )


@shape(steps=60)
def timm_vit():
    """ViT of timm with timm's optimizer, its cosine scheduler with warm-up (an epoch at a time), mixup, its EMA"""
    import egeria

    epochs, loader = 6, DataLoader(images(40, size=32), batch_size=4, shuffle=True, drop_last=True)
    model = tiny_vit()
    mixup = timm.data.Mixup(mixup_alpha=0.2, num_classes=10)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler = timm.scheduler.CosineLRScheduler(optimizer, t_initial=epochs, warmup_t=1, warmup_lr_init=1e-5)
    average = timm.utils.ModelEmaV3(model, decay=0.99)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=epochs * len(loader))
    for epoch in range(epochs):
        model.train()
        for x, y in loader:
            x, y = mixup(x, y)
            loss = timm.loss.SoftTargetCrossEntropy()(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)
            session.step(loss)
        scheduler.step(epoch + 1)
    return model, average


@shape(steps=60, ci=False)
def timm_updates():
    """A ResNet of timm whose scheduler is told the number of updates at each step"""
    import egeria

    model = timm.create_model("resnet10t", num_classes=10)
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgd", lr=0.01, momentum=0.9)
    scheduler = timm.scheduler.CosineLRScheduler(optimizer, t_initial=60, t_in_epochs=False)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    model.train()
    for update in range(1, 61):
        loss = F.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.randint(10, (2,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step_update(update)
        session.step(loss)
    return model


@shape(steps=60, prefix=2, tells=["RATES_UNKNOWN"])
def vit_gradual_unfreezing():
    """Fine-tuning in two phases: only the head of a ViT first, and everything after a third of the steps"""
    import egeria

    model = tiny_vit()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for parameter in model.head.parameters():
        parameter.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for step in range(60):
        if step == 10:
            for parameter in model.parameters():
                parameter.requires_grad_(True)
        loss = F.cross_entropy(model(torch.randn(4, 3, 32, 32)), torch.randint(10, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(3, 16, 8, 8), nn.GELU(), nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 32)
        )
        self.token_embedding = nn.Embedding(50, 32)
        self.transformer = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
        self.text_projection = nn.Linear(32, 32, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(2.66))

    def forward(self, images, tokens):
        seen = F.normalize(self.visual(images), dim=1)
        read = F.normalize(self.text_projection(self.transformer(self.token_embedding(tokens)).mean(1)), dim=1)
        return self.logit_scale.exp() * seen @ read.t()


@shape(steps=60, prefix=1)
def clip():
    """Two towers in the manner of CLIP, with a temperature that the model itself holds and that is clamped"""
    import egeria

    model = Clip()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=60)
    for _ in range(60):
        logits = model(torch.randn(8, 3, 32, 32), torch.randint(50, (8, 6)))
        labels = torch.arange(8)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, 4.6)
        session.step(loss)
    return model


@shape(steps=40, prefix=1, ci=False)
def faster_rcnn_batch_of_one():
    """Faster R-CNN of torchvision, one image in a batch: lists of images and of boxes, a sum of four losses"""
    import egeria

    backbone = small_cnn()[:4]
    backbone.out_channels = 64
    sizes = {"min_size": 64, "max_size": 64, "rpn_pre_nms_top_n_train": 20, "rpn_post_nms_top_n_train": 10}
    anchors = AnchorGenerator(sizes=((16, 32),), aspect_ratios=((1.0,),))
    pool = torchvision.ops.MultiScaleRoIAlign(featmap_names=["0"], output_size=3, sampling_ratio=1)
    model = FasterRCNN(backbone, num_classes=3, rpn_anchor_generator=anchors, box_roi_pool=pool, **sizes)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [20, 30])
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    model.train()
    for _ in range(40):
        low = torch.randint(0, 30, (2, 2)).float()
        boxes = torch.cat([low, low + torch.randint(8, 30, (2, 2))], dim=1)
        losses = model([torch.rand(3, 64, 64)], [{"boxes": boxes, "labels": torch.randint(1, 3, (2,))}])
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.step(loss)
    return model


@shape(steps=40, ci=False)
def segmentation():
    """LR-ASPP of torchvision on MobileNetV3, a dictionary as output, PolynomialLR"""
    import egeria

    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, 40, power=0.9)
    session = egeria.attach(model, optimizer, scheduler=scheduler, total_steps=40)
    model.train()
    for _ in range(40):
        out = model(torch.randn(2, 3, 32, 32))["out"]
        loss = F.cross_entropy(out, torch.randint(4, (2, 32, 32)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.step(loss)
    return model


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.middle = nn.Conv2d(32, 32, 3, padding=1)
        self.up1, self.up2 = nn.Conv2d(64, 16, 3, padding=1), nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x):
        first = F.relu(self.down1(x))
        second = F.relu(self.down2(F.max_pool2d(first, 2)))
        middle = F.relu(self.middle(second))
        third = F.relu(self.up1(torch.cat([middle, second], dim=1)))
        return self.up2(torch.cat([F.interpolate(third, scale_factor=2), first], dim=1))


@shape(steps=60, tells=["RATES_UNKNOWN"])
def unet_dice():
    """A U-Net with skips from early layers to late ones and a Dice loss"""
    import egeria

    model = UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    session = egeria.attach(model, optimizer, total_steps=60)
    for _ in range(60):
        masks = (torch.rand(4, 1, 16, 16) > 0.5).float()
        found = model(torch.randn(4, 1, 16, 16)).sigmoid()
        loss = 1 - 2 * (found * masks).sum() / (found + masks).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        session.step(loss)
    return model
