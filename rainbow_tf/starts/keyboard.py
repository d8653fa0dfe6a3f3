"""A window in which a person plays an Atari game."""

import itertools
import os
from collections.abc import Collection, Sequence

import numpy as np
from ale_py import Action

from rainbow_tf.config import ConfigError
from rainbow_tf.process import optional

KEYS = "arrows: move   space: fire   P: pause   Enter: begin, end and keep   Backspace: discard"
QUIT = "Esc: quit without this game"
_GAME_SIZE = (640, 480)  # the 4:3 of a television
_LINE_HEIGHT = 24
_MARGIN = 6
# The buttons of Pygame's keys, in the order of ALE's action names.
_BUTTONS = {"up": "UP", "down": "DOWN", "right": "RIGHT", "left": "LEFT", "space": "FIRE"}


def choose_action(held: Collection[str], actions: Sequence[Action]) -> int:
    """The code of the action that presses most buttons of the held keys and no others."""
    codes = {action.name: action.value for action in actions}
    buttons = [button for key, button in _BUTTONS.items() if key in held]
    for size in range(len(buttons), 0, -1):
        for chosen in itertools.combinations(buttons, size):
            if (name := "".join(chosen)) in codes:
                return codes[name]
    return codes["NOOP"]


class Keyboard:
    """A game window and the keys held in it."""

    def __init__(self, title: str, frames_per_second: int):
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        with optional("--player=human", extra="record"):
            import pygame
        self._pygame = pygame
        try:
            pygame.display.init()
            driver = pygame.display.get_driver()
            if driver in ("dummy", "offscreen") and "SDL_VIDEODRIVER" not in os.environ:
                raise pygame.error("there is none here")  # SDL would draw where nobody sees it
            pygame.font.init()
            width, height = _GAME_SIZE
            self._window = pygame.display.set_mode((width, height + 3 * _LINE_HEIGHT + _MARGIN))
        except pygame.error as error:
            raise ConfigError(
                f"--player=human needs a screen ({error}); give --player=random or policy here."
            ) from error
        pygame.display.set_caption(title)
        self._font = pygame.font.Font(None, 20)
        self._clock = pygame.time.Clock()
        self._frames_per_second = frames_per_second
        self.held: set[str] = set()

    def poll(self) -> list[str]:
        """Updates the held keys; returns the names of the keys pressed since the last call."""
        pygame = self._pygame
        pressed = []
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                pressed.append("escape")
            elif event.type == pygame.WINDOWFOCUSLOST:
                self.held.clear()  # key releases are not reported to an unfocused window
            elif event.type == pygame.KEYDOWN:
                pressed.append(pygame.key.name(event.key))
                self.held.add(pressed[-1])
            elif event.type == pygame.KEYUP:
                self.held.discard(pygame.key.name(event.key))
        return pressed

    def show(self, screen: np.ndarray, line: str) -> None:
        """Draws a screen [H, W, 3] and a line of text, then waits for the next frame."""
        pygame = self._pygame
        height, width, _ = screen.shape
        picture = pygame.image.frombuffer(screen.tobytes(), (width, height), "RGB")
        self._window.fill("black")
        self._window.blit(pygame.transform.scale(picture, _GAME_SIZE), (0, 0))
        for i, text in enumerate((line, KEYS, QUIT)):
            place = (_MARGIN, _GAME_SIZE[1] + _MARGIN + i * _LINE_HEIGHT)
            self._window.blit(self._font.render(text, True, "white"), place)
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Closes the window."""
        self._pygame.quit()
