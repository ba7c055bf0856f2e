/** Errors about pictures, in words for people. */

import { ApiError } from '../api/errors.js';
import { problem } from '../ui/problems.js';

/**
 * Return the error with the picture in place of the field of the request.
 *
 * @param {Error} error
 */
export const aboutPicture = (error) =>
  error instanceof ApiError
    ? Object.assign(
        new ApiError(
          error.status,
          error.title,
          error.message
            .replace(/`?\binputs\[\d+\](?:\[\d+\])?(?:\.image(?:_url)?)?`?:?/g, 'The picture')
            .replace(/(?<=.)The picture/g, 'the picture'),
          error.retryAfterSeconds,
        ),
        { keyed: error.keyed },
      )
    : error;

/** @param {import('../ui/store.js').Store} store @param {Error} error */
export const pictureProblem = (store, error) => problem(store, aboutPicture(error));
