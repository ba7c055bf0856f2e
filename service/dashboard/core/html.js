/** Templates of lit-html, in which a string is always text. */

import { Directive, directive } from '../vendor/lit-html/directive.js';
import { live } from '../vendor/lit-html/directives/live.js';
import { repeat } from '../vendor/lit-html/directives/repeat.js';
import { html, noChange, nothing, render } from '../vendor/lit-html/lit-html.js';

export { html, live, nothing, render, repeat };
/** @typedef {import('../vendor/lit-html/lit-html.js').TemplateResult | typeof nothing | string} Template */

/** Directive that draws on an element when one of the values for the drawing has changed. */
class Painted extends Directive {
  /** @type {unknown[]} */
  #given = [];

  /**
   * @param {(node: any, ...given: any[]) => void} _draw
   * @param {...unknown} _given
   */
  render(_draw, ..._given) {
    return noChange;
  }

  /**
   * @param {import('../vendor/lit-html/directive.js').PartInfo} part
   * @param {[(node: any, ...given: any[]) => void, ...unknown[]]} values
   * @override
   */
  update(part, [draw, ...given]) {
    if (given.length !== this.#given.length || given.some((value, i) => value !== this.#given[i])) {
      this.#given = given;
      draw(/** @type {any} */ (part).element, ...given);
    }
    return noChange;
  }
}

export const painted = directive(Painted);

/** Isolate a token or text from the writing direction around it. @param {string} name */
export const bdi = (name) => html`<bdi>${name}</bdi>`;

/**
 * Return a value from 0 to 1 as a custom property for `.style=`, which the content security policy allows.
 *
 * @param {number} value
 */
export const share = (value) => `--share: ${Math.max(0, Math.min(1, value))}`;
