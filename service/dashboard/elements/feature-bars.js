/**
 * `<feature-bars>`: bars of features on the screen, with the numbers of the feature under the pointer or
 * chosen by keys.
 */

import { html, render } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { themeColours } from '../draw/colours.js';
import { drawFeatures, heightOf, NO_FEATURE, placeAt } from '../draw/feature-bars.js';
import { DrawnElement } from './drawn.js';

/** @typedef {import('../draw/feature-bars.js').Features} Features */

export class FeatureBars extends DrawnElement {
  /** @type {Features|null} */
  #data = null;
  #pointed = NO_FEATURE;
  #byKey = false;

  /** @param {Features} data */
  set data(data) {
    if (data === this.#data) return;
    this.#data = data;
    this.#point(NO_FEATURE, false);
  }

  /** @param {number} place @param {boolean} byKey */
  #point(place, byKey) {
    this.#pointed = place;
    this.#byKey = byKey;
    if (this.#data) this.#render(this.#data);
    this.redraw();
  }

  /** @param {Features} data */
  #render(data) {
    const move = (/** @type {PointerEvent} */ event) => {
      const box = this.canvas.getBoundingClientRect();
      const place = placeAt(data, box.width, event.clientX - box.left);
      if (place !== this.#pointed) this.#point(place, false);
    };
    const leave = (/** @type {PointerEvent} */ event) =>
      event.pointerType === 'mouse' && this.#point(NO_FEATURE, false);
    render(
      html`<canvas tabindex="0" role="img" aria-label=${`${data.label}, ${data.order.length} features. Arrow keys move between features.`}
          @pointermove=${move} @pointerdown=${move} @pointerleave=${leave}
          @keydown=${(/** @type {KeyboardEvent} */ event) => this.#key(event, data)}></canvas>
        <p class="readout" aria-live=${this.#byKey ? 'polite' : 'off'}>${this.#says(data)}</p>`,
      this,
    );
  }

  /** @param {KeyboardEvent} event @param {Features} data */
  #key(event, { order }) {
    const last = order.length - 1;
    /** @type {Object<string, number>} */
    const places = {
      ArrowLeft: Math.max(0, this.#pointed - 1),
      ArrowRight: Math.min(last, this.#pointed + 1),
      Home: 0,
      End: last,
    };
    if (!(event.key in places)) return;
    event.preventDefault();
    this.#point(places[event.key], true);
  }

  /** Return the numbers of a feature as text. @param {Features} data */
  #says({ rows, order }) {
    if (this.#pointed === NO_FEATURE) return 'Point at a feature, or tap it.';
    const feature = order[this.#pointed];
    const numbers = rows.map(({ name, values }) => `${name} ${fixed(values[feature], 4)}`);
    return `Feature ${feature}: ${numbers.join(', ')}`;
  }

  /** @param {number} width @override */
  draw(width) {
    const data = /** @type {Features} */ (this.#data);
    drawFeatures(this.surface(width, heightOf(data)), themeColours(), data, width, this.#pointed);
  }
}

customElements.define('feature-bars', FeatureBars);
