"""The network of the preset `cartpole` in Keras, for `slices.py '. preset=cartpole network=keras_mlp:create_model'`."""

import keras
from keras import layers


def create_model(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(observation_shape),
            layers.Dense(128, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(n_actions),
        ]
    )
