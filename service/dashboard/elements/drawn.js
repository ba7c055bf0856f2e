/** Base of the elements with a canvas. */

import { CanvasSurface } from '../draw/canvas-and-svg.js';
import { oncePerFrame, sharpContext } from '../draw/canvas.js';

/** Element with a canvas, which is drawn again in the next frame after its size or its data change. */
export class DrawnElement extends HTMLElement {
  #observer = new ResizeObserver(() => this.redraw());
  redraw = oncePerFrame(() => {
    if (this.canvas && this.clientWidth) this.draw(this.clientWidth);
  });

  connectedCallback() {
    this.#observer.observe(this);
  }

  disconnectedCallback() {
    this.#observer.disconnect();
  }

  /** The canvas, once there is data to draw. */
  get canvas() {
    return /** @type {HTMLCanvasElement} */ (this.querySelector('canvas'));
  }

  /** Return the surface of the canvas in a new size. @param {number} width @param {number} height */
  surface(width, height) {
    return new CanvasSurface(sharpContext(this.canvas, width, height));
  }

  /** Draw the data. @param {number} _width of the element */
  draw(_width) {}

  /** Dispatch an event. @param {string} type @param {unknown} detail */
  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
