/** Shifts of the embedding by single heads. */

import { attention } from './client.js';
import { requestOf } from './reading.js';

/**
 * Yield the embedding's shift with each head alone switched off.
 *
 * @param {import('./reading.js').Reading} reading
 * @param {boolean} cut
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<{layer: number, head: number, shift: number}>}
 */
export async function* singleHeadShifts(reading, cut, signal) {
  for (let layer = 0; layer < reading.layers; layer += 1) {
    for (let head = 0; head < reading.heads; head += 1) {
      const body = {
        ...requestOf({ texts: reading.texts, cut, off: [`${layer}.${head}`] }),
        include: ['stats'],
        layers: [0],
        heads: [0],
      };
      const { tensors } = await attention(body, signal);
      yield { layer, head, shift: tensors.pooled_shift.data[0] };
    }
  }
}
