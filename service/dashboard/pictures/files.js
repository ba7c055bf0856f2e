/**
 * Pictures that the viewer has chosen. They are in memory until others are chosen: nothing is stored.
 *
 * @typedef {{name: string, label: string, canvas: HTMLCanvasElement}} Picture `name` stands for it in
 *   questions; `canvas` is what is drawn of it, as it is displayed
 */

import { holdPicture, releasePicture } from '../core/held-pictures.js';
import { contextOf } from '../draw/canvas.js';

/** Longest side of what is drawn, in pixels. The service gets the file itself. */
const LONGEST = 1024;

/** @type {Map<string, Picture>} */
const known = new Map();

/** Return a picture by its name. @param {string} name @returns {Picture} */
export const pictureOf = (name) => /** @type {Picture} */ (known.get(name));

/**
 * Read a picture.
 *
 * @param {Blob} file
 * @param {string} label
 * @returns {Promise<Picture>}
 */
export async function readPicture(file, label) {
  let image;
  try {
    image = await createImageBitmap(file);
  } catch {
    throw new Error(
      `${label} is not a picture that this browser can show: choose a PNG, JPEG, WebP, GIF or BMP file.`,
    );
  }
  const url = await dataUrlOf(file);
  const picture = { name: holdPicture(url), label, canvas: drawn(image) };
  known.set(picture.name, picture);
  return picture;
}

/** Forget a picture. @param {Picture} picture */
export function forget(picture) {
  known.delete(picture.name);
  releasePicture(picture.name);
}

/** Return a file as a data URL, or its base64 alone if its type is not known. @param {Blob} file @returns {Promise<string>} */
const dataUrlOf = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onerror = () => reject(new Error('This file cannot be read any more: choose it again.'));
    reader.onload = () => {
      const url = String(reader.result);
      resolve(file.type.startsWith('image/') ? url : url.slice(url.indexOf(',') + 1));
    };
    reader.readAsDataURL(file);
  });

/** @param {ImageBitmap} image */
function drawn(image) {
  const canvas = document.createElement('canvas');
  const scale = Math.min(1, LONGEST / Math.max(image.width, image.height));
  canvas.width = Math.max(1, Math.round(image.width * scale));
  canvas.height = Math.max(1, Math.round(image.height * scale));
  const context = contextOf(canvas);
  context.imageSmoothingQuality = 'high';
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  image.close();
  return canvas;
}

/** Files of a paste or a drop that are pictures. @param {DataTransfer|null} data */
export const picturesIn = (data) => [...(data?.files ?? [])].filter(({ type }) => type.startsWith('image/'));
