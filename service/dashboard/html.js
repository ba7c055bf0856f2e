/** Templates in which a string is always text, and what canvases and names need in them. */

import { Directive, directive } from './vendor/lit-html/directive.js';
import { live } from './vendor/lit-html/directives/live.js';
import { repeat } from './vendor/lit-html/directives/repeat.js';
import { html, noChange, nothing, render } from './vendor/lit-html/lit-html.js';

export { html, live, nothing, render, repeat };
/** @typedef {import('./vendor/lit-html/lit-html.js').TemplateResult | typeof nothing | string} Template */

/** An element that is drawn on: anew when one of the values that the drawing is made from is another. */
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
   * @param {import('./vendor/lit-html/directive.js').PartInfo} part
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

/** A token or a text between words of the page, whichever way it is written. @param {string} name */
export const bdi = (name) => html`<bdi>${name}</bdi>`;

/** A custom property as the content security policy allows it, by `.style=`. @param {number} value */
export const share = (value) => `--share: ${Math.max(0, Math.min(1, value))}`;

/** @param {number} value @param {number} digits @returns {string} never −0 */
export const fixed = (value, digits) => value.toFixed(digits).replace(/^-(?=[0.]+$)/, '');

/**
 * The result for the same arguments as the last time, of the functions that are called over and over.
 *
 * @template {any[]} A
 * @template R
 * @param {(...given: A) => R} compute
 * @param {number} [kept] how many results are kept
 * @returns {(...given: A) => R}
 */
export function memo(compute, kept = 4) {
  /** @type {{given: A, result: R}[]} */
  const known = [];
  return (...given) => {
    const found = known.find((one) => one.given.every((value, i) => value === given[i]));
    if (found) return found.result;
    const result = compute(...given);
    known.unshift({ given, result });
    known.length = Math.min(known.length, kept);
    return result;
  };
}

/** @param {() => void} draw @returns {() => void} which draws at most once a frame */
export function oncePerFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/**
 * A canvas of so many CSS pixels, sharp on this screen.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D} scaled to CSS pixels, cleared
 */
export function sharpContext(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = contextOf(canvas);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** @param {HTMLCanvasElement} canvas */
export function contextOf(canvas) {
  const context = canvas.getContext('2d');
  if (!context) throw new Error('This browser cannot draw.');
  return context;
}
