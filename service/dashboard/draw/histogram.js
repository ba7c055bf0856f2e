/** Histograms of a number over many texts. */

import { themeColours } from './colours.js';

const BINS = 16;
const SIZE = { width: 200, height: 64 };

/** @typedef {{counts: number[], least: number, most: number, median: number}} Histogram */

/** @param {number[]} values at least one @returns {Histogram} */
export function histogramOf(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const [least, most] = [sorted[0], sorted[sorted.length - 1]];
  const counts = Array(BINS).fill(0);
  const width = (most - least) / BINS || 1;
  for (const value of values) counts[Math.min(BINS - 1, Math.floor((value - least) / width))] += 1;
  const middle = sorted.length >> 1;
  const median = sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return { counts, least, most, median };
}

/** @param {import('./canvas-and-svg.js').Surface} surface @param {Histogram} histogram */
export function drawHistogram(surface, { counts, least, most, median }) {
  const colours = themeColours();
  const highest = Math.max(...counts);
  const { width, height } = SIZE;
  counts.forEach((count, i) => {
    const tall = (count / highest) * height;
    surface.rect((i * width) / BINS, height - tall, width / BINS - 1, tall, colours.line);
  });
  surface.line(0, height, width, height, colours.faint);
  const place = most > least ? ((median - least) / (most - least)) * width : width / 2;
  surface.line(place, 0, place, height, colours.ink, 2);
}

export const HISTOGRAM = SIZE;
