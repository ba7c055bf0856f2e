/**
 * Parser of the safetensors format: u64 header length, JSON header, little-endian data.
 *
 * @typedef {{dtype: string, shape: number[], data: (Float32Array|Int32Array|Uint16Array|Uint8Array)}} Tensor
 *   float16 stays as its bits in a `Uint16Array`
 */

/** @type {Object<string, Float32ArrayConstructor|Int32ArrayConstructor|Uint16ArrayConstructor|Uint8ArrayConstructor>} */
const ARRAYS = { F32: Float32Array, I32: Int32Array, F16: Uint16Array, U8: Uint8Array, BOOL: Uint8Array };
const MAX_HEADER_BYTES = 100_000_000;

/**
 * @param {ArrayBuffer} buffer a whole file
 * @returns {{tensors: Object<string, Tensor>, metadata: Object<string, string>}} views where
 *   alignment allows, copies elsewhere
 * @throws {Error} the file is cut short or malformed
 */
export function parse(buffer) {
  if (buffer.byteLength < 8) throw new Error('safetensors: no header');
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > MAX_HEADER_BYTES || 8 + length > buffer.byteLength)
    throw new Error('safetensors: the header is cut short');
  /** @type {{__metadata__?: Object<string, string>} & Object<string, {dtype: string, shape: number[], data_offsets: number[]}>} */
  const { __metadata__: metadata = {}, ...entries } = JSON.parse(
    new TextDecoder().decode(new Uint8Array(buffer, 8, length)),
  );
  const tensors = Object.create(null);
  for (const [
    name,
    {
      dtype,
      shape,
      data_offsets: [start, end],
    },
  ] of Object.entries(entries)) {
    const ArrayType = ARRAYS[dtype];
    if (!ArrayType) throw new Error(`safetensors: ${dtype} is not known here`);
    const count = shape.reduce((product, size) => product * size, 1);
    if (end - start !== count * ArrayType.BYTES_PER_ELEMENT || 8 + length + end > buffer.byteLength) {
      throw new Error('safetensors: the data is cut short');
    }
    const offset = 8 + length + start;
    const aligned = offset % ArrayType.BYTES_PER_ELEMENT === 0;
    const data = aligned
      ? new ArrayType(buffer, offset, count)
      : new ArrayType(buffer.slice(offset, 8 + length + end));
    tensors[name] = { dtype, shape, data };
  }
  return { tensors, metadata };
}
