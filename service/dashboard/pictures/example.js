/** A picture to begin with: a house, a tree and the sun. */

import { contextOf } from '../draw/canvas.js';

const SIDE = 448;

/** @returns {Promise<Blob>} PNG */
export function examplePicture() {
  const canvas = document.createElement('canvas');
  canvas.width = SIDE;
  canvas.height = SIDE;
  const context = contextOf(canvas);
  const fill = (
    /** @type {string} */ colour,
    /** @type {(path: CanvasRenderingContext2D) => void} */ trace,
  ) => {
    context.fillStyle = colour;
    context.beginPath();
    trace(context);
    context.fill();
  };
  fill('#9fd0ee', (path) => path.rect(0, 0, SIDE, 300));
  fill('#7cab5a', (path) => path.rect(0, 300, SIDE, 148));
  fill('#f6c945', (path) => path.arc(372, 78, 44, 0, 2 * Math.PI));
  fill('#c0563b', (path) => path.rect(60, 190, 160, 150));
  fill('#6b3a2a', (path) => {
    path.moveTo(40, 195);
    path.lineTo(140, 105);
    path.lineTo(240, 195);
  });
  fill('#f3ead9', (path) => path.rect(86, 225, 40, 44));
  fill('#4a2a1e', (path) => path.rect(152, 258, 40, 82));
  fill('#7a5230', (path) => path.rect(312, 250, 24, 110));
  fill('#3f7d3a', (path) => path.arc(324, 218, 62, 0, 2 * Math.PI));
  return new Promise((resolve, reject) => {
    const done = (/** @type {Blob|null} */ blob) =>
      blob ? resolve(blob) : reject(new Error('This browser cannot draw.'));
    canvas.toBlob(done, 'image/png');
  });
}
