/**
 * Return a function that keeps its last results, for arguments that are the same objects.
 *
 * @template {unknown[]} A
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
