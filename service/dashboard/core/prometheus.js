/**
 * Prometheus' text format, and rates and quantiles between two scrapes.
 *
 * @typedef {{name: string, labels: Object<string, string>, value: number}} Sample
 * @typedef {{seconds: number, samples: Sample[]}} Scrape
 */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
/** @type {Object<string, string>} */
const ESCAPES = { '\\n': '\n', '\\"': '"', '\\\\': '\\' };

/** @param {string} text @returns {Sample[]} */
export function parse(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const found = line.startsWith('#') ? null : LINE.exec(line);
    if (!found) continue;
    /** @type {Object<string, string>} */
    const labels = {};
    for (const [, name, value] of (found[2] ?? '').matchAll(LABEL))
      labels[name] = value.replace(/\\[n"\\]/g, (escaped) => ESCAPES[escaped]);
    samples.push({
      name: found[1],
      labels,
      value: { '+Inf': Infinity, '-Inf': -Infinity }[found[3]] ?? Number(found[3]),
    });
  }
  return samples;
}

/** @typedef {(labels: Object<string, string>) => boolean} Keep */

/** @type {Keep} */
const every = () => true;

/** @param {Sample[]} samples @param {string} name @param {Keep} [keep] @returns {Sample[]} those that `keep` wants */
export const select = (samples, name, keep = every) =>
  samples.filter((sample) => sample.name === name && keep(sample.labels));

/** @param {Sample[]} samples @param {string} name @param {Keep} [keep] @returns {number} the sum of those that `keep` wants */
export const total = (samples, name, keep) =>
  select(samples, name, keep).reduce((sum, { value }) => sum + value, 0);

/** @param {Scrape} before @param {Scrape} now @param {string} name @param {Keep} [keep] @returns {number} of a counter, a second */
export function rate(before, now, name, keep) {
  const seconds = now.seconds - before.seconds;
  return seconds > 0
    ? Math.max(0, total(now.samples, name, keep) - total(before.samples, name, keep)) / seconds
    : 0;
}

/**
 * Return a quantile of a histogram between two scrapes, linear within a bucket as Prometheus'
 * histogram_quantile.
 *
 * @param {Scrape} before
 * @param {Scrape} now
 * @param {string} name of the histogram
 * @param {number} share 0 … 1
 * @param {Keep} [keep]
 * @returns {number|null} null when nothing was counted
 */
export function quantile(before, now, name, share, keep) {
  const counts = new Map();
  for (const { scrape, sign } of [
    { scrape: now, sign: 1 },
    { scrape: before, sign: -1 },
  ]) {
    for (const { labels, value } of select(scrape.samples, `${name}_bucket`, keep)) {
      const bound = labels.le === '+Inf' ? Infinity : Number(labels.le);
      counts.set(bound, (counts.get(bound) ?? 0) + sign * value);
    }
  }
  const buckets = [...counts].sort(([a], [b]) => a - b);
  const all = buckets.at(-1)?.[1] ?? 0;
  if (!(all > 0)) return null;
  const wanted = share * all;
  let [low, below] = [0, 0];
  for (const [bound, cumulative] of buckets) {
    if (cumulative >= wanted)
      return bound === Infinity
        ? low
        : low + ((bound - low) * (wanted - below)) / Math.max(cumulative - below, 1e-9);
    [low, below] = [bound, cumulative];
  }
  return low;
}
