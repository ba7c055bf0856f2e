/** Errors of requests. */

/** An error reply of the service. */
export class ApiError extends Error {
  /** Whether the request had a key. */
  keyed = false;

  /**
   * @param {number} status 0 without a reply
   * @param {string} title
   * @param {string} detail
   * @param {number|null} [retryAfterSeconds]
   */
  constructor(status, title, detail, retryAfterSeconds = null) {
    super(detail);
    this.status = status;
    this.title = title;
    this.retryAfterSeconds = retryAfterSeconds;
    this.came = performance.now();
  }

  /** Return the same error in other words. @param {string} message */
  reworded(message) {
    const { status, title, retryAfterSeconds, keyed } = this;
    return Object.assign(new ApiError(status, title, message, retryAfterSeconds), { keyed });
  }

  /** Whether the error ends when the service is available again. */
  get passes() {
    return [0, 502, 503, 504].includes(this.status);
  }
}

/** @param {unknown} error */
export const isAbort = (error) => error instanceof DOMException && error.name === 'AbortError';

/** Return what an error wraps, or the error itself. @param {Error|null} error */
export const causeOf = (error) => (error instanceof OtherTextError ? error.reason : error);

/** Whether an error ends when the service is available again. @param {Error|null} error */
export function isPassing(error) {
  const cause = causeOf(error);
  return cause instanceof ApiError && cause.passes;
}

/** Return the milliseconds until a request that was refused for lack of room is asked again; null of other errors. @param {Error|null} error */
export function waitOf(error) {
  const cause = causeOf(error);
  if (!(cause instanceof ApiError) || cause.status !== 429 || !cause.retryAfterSeconds) return null;
  return Math.max(0, cause.came + 1000 * cause.retryAfterSeconds - performance.now());
}

/** Error of a second text, shown under its own field instead of at the top of the page. */
export class OtherTextError extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super('the other text');
    this.reason = cause instanceof Error ? cause : new Error(String(cause));
  }
}

/** Throw an error as the second text's. @param {unknown} error @returns {never} */
export function inOtherText(error) {
  throw new OtherTextError(error);
}
