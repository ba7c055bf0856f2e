/** Shifts of the embedding by single heads. */

import { attention } from './client.js';
import { requestOf } from './reading.js';

/** @typedef {{alone: Float32Array, done: number}} Shifts `alone` `[L · N]`, of which `done` are measured */

/**
 * Return the embedding's shift with each head alone switched off.
 *
 * @param {import('./reading.js').Reading} reading
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @param {(part: Shifts) => void} showPart
 * @returns {Promise<Shifts>}
 */
export async function singleHeadShifts(reading, cut, signal, showPart) {
  const alone = new Float32Array(reading.layers * reading.heads);
  let done = 0;
  for (let layer = 0; layer < reading.layers; layer += 1) {
    for (let head = 0; head < reading.heads; head += 1) {
      const body = {
        ...requestOf({ texts: reading.texts, cut, off: [`${layer}.${head}`] }),
        include: ['stats'],
        layers: [0],
        heads: [0],
      };
      const { tensors } = await attention(body, signal);
      alone[layer * reading.heads + head] = tensors.pooled_shift.data[0];
      done += 1;
      showPart({ alone, done });
    }
  }
  return { alone, done };
}
