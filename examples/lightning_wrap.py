"""Train a model with Lightning's trainer, callbacks and loggers instead of ``topocaps.fit``.

``fit`` trains many models as one program and resumes bit for bit; Lightning does not. Wrap a model
if the rest of your project uses Lightning already. The example needs ``pip install lightning``.
"""

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import topocaps as tc


class Lit(lightning.LightningModule):
    """A Lightning module of any model of this library."""

    def __init__(self, model: tc.TopographicVAE | tc.VAE, lr: float = 1e-3) -> None:
        super().__init__()
        self.model, self.lr = model, lr

    def training_step(self, x: Tensor, index: int) -> Tensor:  # x: batch time *frame
        evidence = self.model(x)
        self.log("elbo", evidence.elbo.mean(), prog_bar=True)
        return -evidence.objective.mean()

    def on_train_batch_end(self, *_: object) -> None:
        self.model.project()  # keeps weights on their constraints, if the model has any

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main(epochs: int = 20) -> tuple[tc.TopographicVAE, Tensor]:
    """Train on bright pixels that move one pixel per frame; return the model and the frames."""
    start = torch.arange(64)[:, None] % 16
    x = torch.eye(16)[(start + torch.arange(8)) % 16].reshape(64, 8, 1, 1, 16)
    topography = tc.Topography(capsules=2, shape=(8,), window=5)
    model = tc.TopographicVAE.mlp(frame_shape=(1, 1, 16), topography=topography, mu=-5.0)
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(Lit(model), DataLoader(list(x), batch_size=8, shuffle=True))
    return model, x


if __name__ == "__main__":
    model, x = main()
    with torch.no_grad():
        print(f"elbo {model(x).elbo.mean():.2f} nats a frame")
