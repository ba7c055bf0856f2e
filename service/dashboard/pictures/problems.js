/** Errors about pictures, in words for people. */

import { ApiError } from '../api/errors.js';
import { problem } from '../ui/problems.js';

/**
 * Return a detail of an error with pictures and texts in place of fields of the request.
 *
 * @param {string} detail
 * @param {string} [second] name of the second side of a pair
 */
export const inWords = (detail, second = 'the text') =>
  detail.replace(/`?inputs\[\d+\](?:\[(\d)\])?(?:\.\w+)?`?(: )?/g, (_, side, colon) =>
    colon ? '' : side === '1' ? second : 'the picture',
  );

/**
 * @param {import('../ui/store.js').Store} store
 * @param {Error} error
 * @param {string} [second] name of the second side of a pair
 */
export function pictureProblem(store, error, second) {
  if (!(error instanceof ApiError)) return problem(store, error);
  const { status, title, message, retryAfterSeconds, keyed } = error;
  const worded = new ApiError(status, title, inWords(message, second), retryAfterSeconds);
  return problem(store, Object.assign(worded, { keyed }));
}
