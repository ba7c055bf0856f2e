/**
 * Return a `keydown` listener that moves the focus among the buttons of a container as they lie on the
 * screen.
 *
 * @param {(button: HTMLButtonElement) => void} [onMove] told where the focus went
 */
export const arrowKeys =
  (onMove = () => {}) =>
  (/** @type {KeyboardEvent} */ event) => {
    const container = /** @type {HTMLElement} */ (event.currentTarget);
    const buttons = [...container.querySelectorAll('button')];
    const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const next = at < 0 ? undefined : neighbour(buttons, at, event.key);
    if (!next) return;
    event.preventDefault();
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
    onMove(next);
  };

/** @param {HTMLButtonElement[]} buttons @param {number} at @param {string} key */
function neighbour(buttons, at, key) {
  if (key === 'Home') return buttons[0];
  if (key === 'End') return buttons.at(-1);
  if (key === 'ArrowLeft') return buttons[at - 1];
  if (key === 'ArrowRight') return buttons[at + 1];
  if (key !== 'ArrowUp' && key !== 'ArrowDown') return undefined;
  const here = buttons[at].getBoundingClientRect();
  const down = key === 'ArrowDown';
  const candidates = (down ? buttons.slice(at + 1) : buttons.slice(0, at).reverse()).filter((button) => {
    const { top } = button.getBoundingClientRect();
    return down ? top > here.top + 2 : top < here.top - 2;
  });
  const above = (/** @type {HTMLButtonElement} */ button) =>
    Math.abs(button.getBoundingClientRect().left - here.left) < here.width / 2;
  return candidates.find(above) ?? candidates[0];
}
