/** Handlers of files that are chosen in a field or dropped on an element. */

/** @typedef {(files: FileList|null) => Promise<void>} Open */

/** Return the handler of a field of files. @param {Open} open */
export const chosen = (open) => async (/** @type {Event} */ event) => {
  const input = /** @type {HTMLInputElement} */ (event.currentTarget);
  await open(input.files);
  input.value = ''; // the same file can be chosen again, when it is another
};

/** Return the handler of a drop. @param {Open} open */
export const dropped = (open) => (/** @type {DragEvent} */ event) => {
  if (!event.dataTransfer?.files.length) return;
  event.preventDefault();
  open(event.dataTransfer.files);
};
