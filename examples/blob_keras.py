"""The Blob tutorial's model as a network: a function that returns a Keras model.

    cd examples
    twin-graph train blob --set network=blob_keras:create_model --steps 100000

Its loss and optimizer are `loss` and `train.optimizer` here. Bytes arrive divided by 255; dropout is for updates alone.
"""

import keras
from keras.layers import Activation, Conv2D, Dense, Dropout, Flatten, MaxPooling2D


def create_model(observation_shape: tuple[int, ...], n_actions: int) -> keras.Model:
    model = keras.Sequential()
    model.add(keras.Input(observation_shape))  # (10, 10, 3), a 10x10 RGB image

    for _ in range(2):
        model.add(Conv2D(256, (3, 3)))
        model.add(Activation("relu"))
        model.add(MaxPooling2D(pool_size=(2, 2)))
        model.add(Dropout(0.2))

    model.add(Flatten())
    model.add(Dense(64))
    model.add(Dense(n_actions, activation="linear"))
    return model
