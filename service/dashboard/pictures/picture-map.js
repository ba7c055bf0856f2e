/**
 * `<picture-map>`: a picture on the screen, with a map over it. Dispatches `choose` (a patch, whether by key, and
 * whether the Shift key is held).
 */

import { html, nothing, render } from '../core/html.js';
import { DrawnElement } from '../elements/drawn.js';
import { barHeight, drawBar, drawPicture } from './drawing.js';
import { beside, drawnSize, placing } from './geometry.js';
import { patchName } from './tokens.js';

/**
 * @typedef {{patch: number, byKey: boolean, other: boolean}} Choice
 * @typedef {import('./drawing.js').Drawn & {label: string, tall: number, moves: number, shifts: number, says: ((patch: number) =>
 *   string)|null}} PictureData `tall`: the most of its height in pixels; `moves` and `shifts`: patches from which the
 *   arrow keys move, without and with the Shift key; `says` returns the numbers of a patch
 */

export class PictureMap extends DrawnElement {
  /** @type {PictureData|null} */
  #data = null;
  #pointed = -1;

  /** @param {PictureData} data */
  set data(data) {
    this.#data = data;
    this.#render(data);
    this.redraw();
  }

  /** @param {PictureData} data */
  #render(data) {
    const [rows, columns] = data.view.grid;
    const label = `${data.label}, ${rows} rows of ${columns} patches. Arrow keys move between patches.`;
    const point = (/** @type {number} */ patch) => {
      if (patch === this.#pointed) return;
      this.#pointed = patch;
      this.#render(data);
      this.redraw();
    };
    render(
      html`<canvas tabindex="0" role="img" aria-label=${label}
          @pointermove=${(/** @type {PointerEvent} */ event) => event.pointerType === 'mouse' && point(this.#at(event))}
          @pointerleave=${() => point(-1)}
          @click=${(/** @type {MouseEvent} */ event) => this.#choose(this.#at(event), false, event.shiftKey)}
          @keydown=${(/** @type {KeyboardEvent} */ event) => this.#key(event, data)}></canvas>
        ${data.says ? html`<p class="readout">${this.#says(data)}</p>` : nothing}`,
      this,
    );
  }

  /** @param {PictureData} data */
  #says({ says, view, moves }) {
    const patch = this.#pointed >= 0 ? this.#pointed : moves;
    if (!says || patch < 0) return 'Point at a patch, or tap it.';
    return `${patchName(view, patch)}: ${says(patch)}`.replace(/^./, (first) => first.toUpperCase());
  }

  /** @param {KeyboardEvent} event @param {PictureData} data */
  #key(event, { view, moves, shifts }) {
    const patch = beside(view, event.shiftKey && shifts >= 0 ? shifts : moves, event.key);
    if (patch === null) return;
    event.preventDefault();
    this.#choose(patch, true, event.shiftKey);
  }

  /** @param {number} patch @param {boolean} byKey @param {boolean} other */
  #choose(patch, byKey, other) {
    if (patch < 0) return;
    this.tell('choose', { patch, byKey, other });
  }

  /** @param {number} [wide] */
  #size(wide = this.clientWidth) {
    const { view, tall } = /** @type {PictureData} */ (this.#data);
    return drawnSize(view, [wide, tall]);
  }

  /** @param {MouseEvent} event */
  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    const { view } = /** @type {PictureData} */ (this.#data);
    return placing(view, this.#size()).at(event.clientX - box.left, event.clientY - box.top);
  }

  /** @param {number} width @override */
  draw(width) {
    const data = /** @type {PictureData} */ (this.#data);
    const size = this.#size();
    const { layer } = data;
    const wide = layer ? Math.min(width, Math.max(size[0], 300)) : size[0];
    const surface = this.surface(wide, size[1] + barHeight(layer));
    drawPicture(surface, data, size, this.#pointed);
    if (layer) drawBar(surface, layer, size);
  }
}

customElements.define('picture-map', PictureMap);
